#!/bin/sh
# Runs each package's test binary in its own folder, in a guest that package debianvm booted. Arguments: the packages' folders.
# FLAGS are the binaries'. What the tests print goes out between two marks, the second with the exit status.
top=$PWD
export TAPIR_BIN_DIR=$top/bin TAPIR_REFPLUGINS=$top/refplugins
modprobe -a tun veth bridge nf_tables nft_chain_nat nft_masq cls_bpf sch_ingress sch_tbf act_mirred
for package; do
	echo "@@ begin $package"
	# shellcheck disable=SC2086 # FLAGS are several words
	(cd "tree/$package" && ./kernels.test $FLAGS 2>&1)
	echo "@@ end $?"
done
