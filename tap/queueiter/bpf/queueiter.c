/*
 * Two iterators, read once a question: queues writes a record for each open file of the tun driver, openers one for each
 * thread, by which queueiter tells who opened a file. Both need the kernel's BTF.
 */
#include <linux/bpf.h>

#include <bpf/bpf_core_read.h>
#include <bpf/bpf_helpers.h>

#include "kernel.h"

/* bpf_seq_write and bpf_probe_read_kernel are for GPL-compatible programs alone. */
char LICENSE[] SEC("license") = "Dual BSD/GPL";

#define TUN_DEV ((10 << 20) | 200) /* MKDEV(MISC_MAJOR, TUN_MINOR) */
#define TYPE_MASK 0170000
#define TYPE_CHR 0020000
#define MODE_PATH 0x4000 /* FMODE_PATH: opened with O_PATH, no driver behind it */

enum attach {
	ATTACH_UNKNOWN,
	ATTACH_NONE,     /* no TUNSETIFF yet, or its device was deleted */
	ATTACH_ENABLED,  /* a queue of the device */
	ATTACH_DISABLED, /* taken out by TUNSETQUEUE, IFF_DETACH_QUEUE */
};

struct queue {
	__u64 file;      /* address of struct tun_file: tells files apart */
	__u64 open_cred; /* address of the opener's credentials */
	__u32 pid;       /* in the reader's pid namespace */
	__u32 fd;
	__u32 netns;     /* inode of the netns that the file was opened in */
	__u32 dev_netns; /* inode of the netns that the device is in now */
	__u32 ifindex;
	__u32 flags;     /* of the device: IFF_*, and the driver's own bits */
	__u32 numqueues;
	__u32 numdisabled;
	__s32 vnet_hdr_sz;
	__s32 ring;      /* slots */
	__u32 poll_thread; /* kernel thread that polls it, as the reader sees it; 0: none */
	__u32 pad;
	enum attach attach;
	__u16 queue_index;
	__u8 napi;
	__u8 napi_frags;
	char name[16];
	char comm[16];
};

struct opener {
	__u64 cred; /* address of the thread's credentials */
	__u32 pid;  /* of the process, in the reader's pid namespace */
	char comm[16];
	__u32 pad;
};

/* For bpf2go: C gives no BTF to a type that no variable has. */
const struct queue *unused_queue __attribute__((unused));
const struct opener *unused_opener __attribute__((unused));
const enum attach *unused_attach __attribute__((unused));

/* The pid of the task's process as the reader of the iterator sees it; 0 where it does not. */
static __always_inline __u32 visible_pid(struct task_struct *task)
{
	struct task_struct *reader = (void *)bpf_get_current_task();
	unsigned int level = BPF_CORE_READ(reader, thread_pid, level);
	struct pid *pid = BPF_CORE_READ(task, group_leader, thread_pid);
	struct upid upid = {};

	if (!pid || level > BPF_CORE_READ(pid, level))
		return 0;
	bpf_core_read(&upid.nr, sizeof(upid.nr),
		      (void *)pid + bpf_core_field_offset(struct pid, numbers) + level * bpf_core_type_size(struct upid) +
			      bpf_core_field_offset(struct upid, nr));
	return upid.nr;
}

static __always_inline int is_tun(struct file *file)
{
	return (BPF_CORE_READ(file, f_inode, i_mode) & TYPE_MASK) == TYPE_CHR &&
	       BPF_CORE_READ(file, f_inode, i_rdev) == TUN_DEV && !(BPF_CORE_READ(file, f_mode) & MODE_PATH);
}

/* The driver frees a device after an RCU grace period, and an iterator's program runs inside one. */
static __always_inline void read_device(struct queue *q, struct tun_struct *tun)
{
	struct net_device *dev = BPF_CORE_READ(tun, dev);

	q->flags = BPF_CORE_READ(tun, flags);
	q->numqueues = BPF_CORE_READ(tun, numqueues);
	q->numdisabled = BPF_CORE_READ(tun, numdisabled);
	q->vnet_hdr_sz = BPF_CORE_READ(tun, vnet_hdr_sz);
	q->ifindex = BPF_CORE_READ(dev, ifindex);
	q->dev_netns = BPF_CORE_READ(dev, nd_net.net, ns.inum);
	BPF_CORE_READ_STR_INTO(&q->name, dev, name);
}

SEC("iter/task_file")
int queues(struct bpf_iter__task_file *ctx)
{
	struct task_struct *task = ctx->task;
	struct file *file = ctx->file;
	struct tun_struct *tun;
	struct tun_file *tf;
	struct queue q = {};

	if (!task || !file || !is_tun(file))
		return 0;
	tf = (void *)BPF_CORE_READ(file, private_data);
	if (!tf)
		return 0;
	q.file = (__u64)tf;
	q.open_cred = (__u64)BPF_CORE_READ(file, f_cred);
	q.pid = visible_pid(task);
	q.fd = ctx->fd;
	q.netns = BPF_CORE_READ(tf, sk.__sk_common.skc_net.net, ns.inum);
	BPF_CORE_READ_STR_INTO(&q.comm, task, group_leader, comm);

	/* A disabled queue keeps its tun. */
	q.attach = ATTACH_DISABLED;
	tun = BPF_CORE_READ(tf, detached);
	if (!tun) {
		q.attach = ATTACH_ENABLED;
		tun = BPF_CORE_READ(tf, tun);
	}
	if (tun) {
		read_device(&q, tun);
		q.queue_index = BPF_CORE_READ(tf, queue_index);
		q.ring = BPF_CORE_READ(tf, tx_ring.size);
		q.napi = BPF_CORE_READ(tf, napi_enabled);
		q.napi_frags = BPF_CORE_READ(tf, napi_frags_enabled);
		/* A queue without NAPI has a napi_struct that was never set up, or that of an earlier TUNSETIFF. Threads came with 5.12. */
		if (q.napi && bpf_core_field_exists(tf->napi.thread)) {
			struct task_struct *thread = BPF_CORE_READ(tf, napi.thread);

			q.poll_thread = thread ? visible_pid(thread) : 0;
		}
	} else {
		q.attach = ATTACH_NONE;
	}
	bpf_seq_write(ctx->meta->seq, &q, sizeof(q));
	return 0;
}

SEC("iter/task")
int openers(struct bpf_iter__task *ctx)
{
	struct task_struct *task = ctx->task;
	struct opener o = {};

	if (!task)
		return 0;
	o.cred = (__u64)BPF_CORE_READ(task, cred);
	o.pid = visible_pid(task);
	BPF_CORE_READ_STR_INTO(&o.comm, task, group_leader, comm);
	bpf_seq_write(ctx->meta->seq, &o, sizeof(o));
	return 0;
}
