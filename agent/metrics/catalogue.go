package metrics

import dto "github.com/prometheus/client_model/go"

// scope is what a family has a series of.
type scope uint8

const (
	ofNode       scope = iota
	ofAttachment       // with attachmentLabels
	ofQueue            // with attachmentLabels and queue
	ofDevice           // of the node, chosen by "uplinkMetrics"
)

func (s scope) String() string {
	return [...]string{"the node", "each attachment", "each enabled queue", "each uplink that is looked at"}[s]
}

// attachmentLabels are on each series of an attachment. The first two are the pod's, by CNI_ARGS, and absent without Kubernetes.
var attachmentLabels = []string{"namespace", "pod", "network", "container_id", "interface"}

// family is one metric family.
type family struct {
	name   string
	kind   dto.MetricType
	scope  scope
	labels []string // beside those of the scope
	series string   // how many series there are for each of the scope; empty: one
	help   string
}

const (
	counter   = dto.MetricType_COUNTER
	gauge     = dto.MetricType_GAUGE
	histogram = dto.MetricType_HISTOGRAM
)

// id is a family's place in the table.
type id int

const (
	buildInfo id = iota
	partRunning
	partReady
	installForeign
	installWrites
	sampleSeconds
	sampleProblems
	watchReadings
	watchFailedReadings
	watchOverruns
	watchEvents

	attachments
	attachmentInfo
	attachmentNetnsLost
	tapFromGuestFrames
	tapFromGuestBytes
	tapToGuestFrames
	tapToGuestBytes
	tapDroppedFrames
	tapCarrierUps
	tapQueues
	tapRing
	tapThreaded
	tapFlushTimeout
	tapDeferHardIRQs
	queueInfo
	queueNAPI
	queueThreaded
	queueRing
	redirectFrames
	redirectBytes
	shortcutFrames
	shortcutBytes

	ipamSize
	ipamLeased
	ipamResting
	cniCalls
	tunerDecisions
	tunerLostFrames
	reconcileFindings
	reconcileOpen

	uplinkPages
	uplinkInflightPages
	uplinkInflightBytes
	uplinkQueueCPU
	uplinkNAPIThread
	uplinkIOMMU

	familyCount
)

// families is the table.
var families = [familyCount]family{
	buildInfo:           {"tapir_agent_build_info", gauge, ofNode, []string{"version"}, "", "1; the version of tapird."},
	partRunning:         {"tapir_agent_part_running", gauge, ofNode, []string{"part"}, "parts", "1 while a part of tapird runs, 0 while it waits to be run again after a failure."},
	partReady:           {"tapir_agent_part_ready", gauge, ofNode, []string{"part"}, "parts", "1 where a part runs and all is as it wants it, else 0; /readyz has the reason. Part install: an ADD would work."},
	installForeign:      {"tapir_install_foreign_configurations", gauge, ofNode, nil, "only where tapird installs", "Configurations of other networks that the runtime takes before tapir's."},
	installWrites:       {"tapir_install_writes_total", counter, ofNode, nil, "only where tapird installs", "Programs and configurations that were written; more than a few say that somebody undoes it."},
	sampleSeconds:       {"tapir_agent_sample_duration_seconds", gauge, ofNode, nil, "", "What the reading of kernel and state took for this scrape."},
	sampleProblems:      {"tapir_agent_sample_problems", gauge, ofNode, nil, "", "Things that could not be read for this scrape; series that depend on them are missing. tapird --dry-run --json names them."},
	watchReadings:       {"tapir_watch_readings_total", counter, ofNode, nil, "", "State folders read."},
	watchFailedReadings: {"tapir_watch_failed_readings_total", counter, ofNode, nil, "", "State folders that could not be read; what was known of them stays."},
	watchOverruns:       {"tapir_watch_overruns_total", counter, ofNode, nil, "", "Times that the kernel had more to tell than fits, and everything was read anew."},
	watchEvents:         {"tapir_watch_events_total", counter, ofNode, nil, "", "Events given to parts of tapird."},

	attachments:         {"tapir_attachments", gauge, ofNode, []string{"status"}, "2", "Attachments, by whether their ADD has ended: ready, pending."},
	attachmentInfo:      {"tapir_attachment_info", gauge, ofAttachment, []string{"tap", "vmm", "placement", "state_dir"}, "", "1; what does not change of an attachment."},
	attachmentNetnsLost: {"tapir_attachment_netns_lost", gauge, ofAttachment, nil, "", "1 where the sandbox's network namespace is gone and no DEL came, else 0."},
	tapFromGuestFrames:  {"tapir_tap_from_guest_frames_total", counter, ofAttachment, nil, "", "Frames that the VMM wrote to the TAP, before GRO."},
	tapFromGuestBytes:   {"tapir_tap_from_guest_bytes_total", counter, ofAttachment, nil, "", "Their bytes, with Ethernet headers."},
	tapToGuestFrames:    {"tapir_tap_to_guest_frames_total", counter, ofAttachment, nil, "", "Frames that the VMM read from the TAP."},
	tapToGuestBytes:     {"tapir_tap_to_guest_bytes_total", counter, ofAttachment, nil, "", "Their bytes, with Ethernet headers."},
	tapDroppedFrames: {"tapir_tap_dropped_frames_total", counter, ofAttachment, []string{"reason"}, "2, and one for each other reason that was met",
		"Frames that were lost or refused. ring_full: to the guest, no room in the ring or no queue attached. receive: from the guest, the kernel had no memory or no room. shaper_to_guest, shaper_from_guest: over the bandwidth limit. xdp_ and tc_: refused by the shortcut. The others are those of the redirect programs (docs/operations.md)."},
	tapCarrierUps:    {"tapir_tap_carrier_ups_total", counter, ofAttachment, nil, "", "Times that the TAP got its carrier: a VMM attached its first queue."},
	tapQueues:        {"tapir_tap_queues", gauge, ofAttachment, []string{"state"}, "2", "Queues of the TAP, those that no process holds included: enabled, disabled (by TUNSETQUEUE)."},
	tapRing:          {"tapir_tap_ring_frames", gauge, ofAttachment, nil, "", "Length of the rings towards the guest that queues get (txqueuelen)."},
	tapThreaded:      {"tapir_tap_napi_threaded", gauge, ofAttachment, nil, "", "0: softirq polls; 1: a thread for each queue; 2: threads that poll without end."},
	tapFlushTimeout:  {"tapir_tap_gro_flush_timeout_seconds", gauge, ofAttachment, nil, "", "How long GRO may keep a frame."},
	tapDeferHardIRQs: {"tapir_tap_napi_defer_hard_irqs", gauge, ofAttachment, nil, "", "Empty polls before a queue's NAPI rests."},
	queueInfo: {"tapir_queue_info", gauge, ofQueue, []string{"program", "opened"}, "",
		"1; an enabled queue that a process holds. program: that process, by the name that it gave itself; opened: by_name, handed_over, unknown."},
	queueNAPI:      {"tapir_queue_napi", gauge, ofQueue, nil, "", "1 where the queue runs NAPI."},
	queueThreaded:  {"tapir_queue_napi_threaded", gauge, ofQueue, nil, "", "1 where a kernel thread polls the queue."},
	queueRing:      {"tapir_queue_ring_frames", gauge, ofQueue, nil, "", "Frames that fit into the queue's ring towards the guest."},
	redirectFrames: {"tapir_redirect_frames_total", counter, ofAttachment, []string{"reason"}, "2, and one for each other reason that was met", "Frames that the redirect programs sent on or answered, after GRO; a GSO frame is one. Dropped ones are among tapir_tap_dropped_frames_total."},
	redirectBytes:  {"tapir_redirect_bytes_total", counter, ofAttachment, []string{"reason"}, "2", "Bytes of those sent to_host and to_guest, with Ethernet headers. By frames: what GRO and GSO make of them."},
	shortcutFrames: {"tapir_shortcut_frames_total", counter, ofAttachment, []string{"hook", "reason"}, "4, and one for each other reason that was met; none without the shortcut", "Frames that the shortcut's programs saw: to_guest and to_uplink took it, pass_ went the default way, conntrack_lookup and checksum_completed are counted beside."},
	shortcutBytes:  {"tapir_shortcut_bytes_total", counter, ofAttachment, []string{"hook", "reason"}, "4; none without the shortcut", "Bytes of those that took the shortcut, with Ethernet headers."},

	ipamSize:          {"tapir_ipam_range_addresses", gauge, ofNode, []string{"state_dir", "range"}, "ranges", "Addresses of a range from its first to its last, gateways and excluded ones included."},
	ipamLeased:        {"tapir_ipam_leased_addresses", gauge, ofNode, []string{"state_dir", "range"}, "ranges", "Addresses of a range that are leased, by whatever network."},
	ipamResting:       {"tapir_ipam_resting_addresses", gauge, ofNode, []string{"state_dir", "range"}, "ranges", "Addresses of a range that were released and are not to be used yet."},
	cniCalls:          {"tapir_cni_call_duration_seconds", histogram, ofNode, []string{"state_dir", "verb", "code"}, "18 for each verb and code that was met", "CNI calls, counted by the plugin itself since the node's start. code 0 is success; -1 one that this version does not know."},
	tunerDecisions:    {"tapir_tuner_decisions_total", counter, ofNode, []string{"kind", "to", "result"}, "kinds that were met", "What the tuner decided: kind and to say about what and for what (docs/tapird.md), result whether it was carried out."},
	tunerLostFrames:   {"tapir_tuner_resize_lost_frames_total", counter, ofNode, nil, "", "Frames that ring resizes of the tuner cost."},
	reconcileFindings: {"tapir_reconcile_findings_total", counter, ofNode, []string{"kind", "outcome"}, "kinds and outcomes that were met", "What was found dead or changed since its ADD, by what became of it: found (each once), repaired, reported, failed (attempts), contested. kind is that of docs/reconcile.md."},
	reconcileOpen:     {"tapir_reconcile_open_findings", gauge, ofNode, []string{"kind"}, "kinds that were met", "Findings that are there now."},

	uplinkPages:         {"tapir_uplink_page_pool_pages_total", counter, ofDevice, []string{"event"}, "11", "Pages of the device's page pools by what happened: alloc_* where they came from, recycle_* where they went (Documentation/networking/page_pool.rst). alloc_slow and recycle_released_refcnt that grow with the traffic say that pages are not recycled."},
	uplinkInflightPages: {"tapir_uplink_page_pool_inflight_pages", gauge, ofDevice, nil, "", "Pages that are out of the device's page pools."},
	uplinkInflightBytes: {"tapir_uplink_page_pool_inflight_bytes", gauge, ofDevice, nil, "", "Their memory."},
	uplinkQueueCPU:      {"tapir_uplink_queue_cpu", gauge, ofDevice, []string{"queue", "direction", "polled_by"}, "queues", "The CPU that polls a queue: of its interrupt (the first of its effective affinity), or on which its thread ran last. -1: unknown."},
	uplinkNAPIThread:    {"tapir_uplink_napi_threaded", gauge, ofDevice, []string{"napi_id"}, "NAPIs", "1 where a thread of its own polls a NAPI."},
	uplinkIOMMU:         {"tapir_uplink_iommu_info", gauge, ofDevice, []string{"mode"}, "", "1; the kind of the device's IOMMU domain: none, identity, DMA, DMA-FQ. DMA is strict: each unmapping waits for the IOMMU."},
}

// labelsOf are all label names of a family.
func (f *family) allLabels() []string {
	var list []string
	switch f.scope {
	case ofAttachment:
		list = append(list, attachmentLabels...)
	case ofQueue:
		list = append(append(list, attachmentLabels...), "queue")
	case ofDevice:
		list = append(list, "device")
	}
	return append(list, f.labels...)
}
