/* SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only */
/*
 * The maps of the shortcut.
 */
#ifndef TAPIR_SHORTCUT_MAPS_H
#define TAPIR_SHORTCUT_MAPS_H

#include <linux/bpf.h>

#include <bpf/bpf_helpers.h>

#include "shortcut.h"

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SHORTCUT_MAX_ATTACHMENTS);
	__type(key, __u32);
	__type(value, struct attachment);
} attachments SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SHORTCUT_MAX_PODS);
	__type(key, struct ipv6_addr);
	__type(value, struct pod);
} pods SEC(".maps");

/*
 * TAPs of all pods' netns by ifindex: an entry is resolved in the netns of the thread that writes it, and forgotten by
 * the kernel when the device goes.
 */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, SHORTCUT_MAX_DEVICES);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} devices SEC(".maps");

/* Uplinks are in a map of their own: their ifindexes are not of tapir's choice. */
struct {
	__uint(type, BPF_MAP_TYPE_DEVMAP_HASH);
	__uint(max_entries, SHORTCUT_MAX_UPLINKS);
	__type(key, __u32);
	__type(value, struct bpf_devmap_val);
} uplinks SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LPM_TRIE);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SHORTCUT_MAX_ROUTES);
	__type(key, struct route_key);
	__type(value, struct route);
} routes SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SHORTCUT_MAX_FLOWS);
	__type(key, struct flow4_key);
	__type(value, struct flow);
} flows4 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_LRU_HASH);
	__uint(max_entries, SHORTCUT_MAX_FLOWS);
	__type(key, struct flow_key);
	__type(value, struct flow);
} flows6 SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_ARRAY);
	__uint(max_entries, 1);
	__type(key, __u32);
	__type(value, struct shortcut_settings);
} settings SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_PERCPU_HASH);
	__uint(map_flags, BPF_F_NO_PREALLOC);
	__uint(max_entries, SHORTCUT_MAX_ATTACHMENTS);
	__type(key, __u32);
	__type(value, struct path_counts);
} paths SEC(".maps");

struct {
	__uint(type, BPF_MAP_TYPE_RINGBUF);
	__uint(max_entries, SHORTCUT_EVENTS_SIZE);
} events SEC(".maps");

#endif
