package queueiter

// Debian keeps asm/types.h of each architecture in a folder of its own; where there is none, the -I is without effect.
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type queue -type opener -type attach bpf bpf/queueiter.c
