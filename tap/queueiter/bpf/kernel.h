/*
 * The kernel's structures, cut down to the fields that are read. Their places are found when the program is loaded, by the
 * kernel's own BTF (CO-RE), so neither order nor size matters here, only names.
 */
#pragma once

#pragma clang attribute push(__attribute__((preserve_access_index)), apply_to = record)

struct seq_file;

struct cred {};

struct ns_common {
	unsigned int inum;
};

struct net {
	struct ns_common ns;
};

typedef struct {
	struct net *net;
} possible_net_t;

/* include/linux/pid.h; numbers has one entry for each pid namespace that the process is visible in. */
struct upid {
	int nr;
};

struct pid {
	unsigned int level;
	struct upid numbers[1];
};

struct task_struct {
	char comm[16];
	struct task_struct *group_leader;
	const struct cred *cred;
	struct pid *thread_pid;
};

struct inode {
	unsigned short i_mode;
	unsigned int i_rdev;
};

struct file {
	struct inode *f_inode;
	unsigned int f_mode;
	void *private_data;
	const struct cred *f_cred;
};

struct sock_common {
	possible_net_t skc_net;
};

struct sock {
	struct sock_common __sk_common;
};

struct net_device {
	char name[16];
	int ifindex;
	possible_net_t nd_net;
};

struct ptr_ring {
	int size;
};

/* include/linux/netdevice.h */
struct napi_struct {
	struct task_struct *thread;
};

/* drivers/net/tun.c */
struct tun_struct {
	unsigned int numqueues;
	unsigned int flags;
	unsigned int numdisabled;
	int vnet_hdr_sz;
	struct net_device *dev;
};

struct tun_file {
	struct sock sk;
	struct tun_struct *tun;
	struct tun_struct *detached;
	struct napi_struct napi;
	unsigned short queue_index;
	_Bool napi_enabled;
	_Bool napi_frags_enabled;
	struct ptr_ring tx_ring;
};

/* kernel/bpf/task_iter.c */
struct bpf_iter_meta {
	struct seq_file *seq;
};

struct bpf_iter__task_file {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
	unsigned int fd;
	struct file *file;
};

struct bpf_iter__task {
	struct bpf_iter_meta *meta;
	struct task_struct *task;
};

#pragma clang attribute pop
