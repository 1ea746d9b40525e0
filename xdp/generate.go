package xdp

// Debian keeps asm/types.h of each architecture in a folder of its own; where there is none, the -I is without effect.
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type endpoint -type counts -type reason -type role -type redirect redirect bpf/redirect.c
//go:generate go tool bpf2go -target bpfel -cc clang -strip llvm-strip -cflags "-O2 -g -Wall -Wextra -Werror -mcpu=v3 -I/usr/include/x86_64-linux-gnu -I/usr/include/aarch64-linux-gnu" -type attachment -type pod -type route_key -type route -type flow_key -type flow4_key -type flow -type shortcut_settings -type path_event -type path_counts -type path_reason -type path_hook -type verdict -type shortcut_layout shortcut bpf/shortcut.c
