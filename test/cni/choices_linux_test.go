package cni_test

import (
	"strings"
	"testing"

	types100 "github.com/containernetworking/cni/pkg/types/100"
	"github.com/tapir-cni/tapir/state"
)

// chosen is a configuration of a network whose pods may choose all there is, with these annotations of the pod.
func chosen(annotations object) object {
	return object{
		"podAnnotations": []string{"queues", "mac", "ip", "profile", "tapir.dev/xdp"},
		"runtimeConfig":  object{"io.kubernetes.cri.pod-annotations": object{"example.com/queues": "none of tapir's"}.with(annotations)},
	}
}

// record is what the node remembers of the pod's attachment.
func (p *pod) record() state.Attachment {
	p.n.t.Helper()
	var all []state.Attachment
	p.n.ctlJSON(&all, "list", p.id)
	if len(all) != 1 {
		p.n.t.Fatalf("tapirctl list %s: want one attachment, got %v", p.id, all)
	}
	return all[0]
}

// What a pod chooses by annotation is what it gets, unless the runtime says otherwise.
func TestPodsChooseByAnnotation(t *testing.T) {
	n := newNode(t)
	noRest := object{"ipam": ranges("10.9.0.0/24", "fd00:9::/64").with(object{"reuseDelay": "0s"})}
	profile := func(want string) func(*testing.T, *pod, *types100.Result) {
		return func(t *testing.T, p *pod, _ *types100.Result) {
			if got := p.record().Profile; got != want {
				t.Errorf("profile: want %q, got %q", want, got)
			}
		}
	}
	part := func(want string, joined bool) func(*testing.T, *pod, *types100.Result) {
		return func(t *testing.T, p *pod, _ *types100.Result) {
			if got := p.record().XDP; got.Wanted != want || (got.Mode != "") != joined {
				t.Errorf("part in the shortcut: want %q (%t), got %+v", want, joined, got)
			}
		}
	}
	for _, tt := range []struct {
		name        string
		annotations object
		args        string
		over        object
		want        func(*testing.T, *pod, *types100.Result)
	}{
		{"queues", object{"tapir.dev/queues": "4"}, "", nil, wantTapOf("tap-eth0", 4, 0, -1)},
		{"queues before the configuration's", object{"tapir.dev/queues": "1"}, "", object{"queues": 2}, wantTapOf("tap-eth0", 1, 0, -1)},
		{"CNI_ARGS before queues", object{"tapir.dev/queues": "4"}, "TAP_QUEUES=1", nil, wantTapOf("tap-eth0", 1, 0, -1)},
		{"MAC", object{"tapir.dev/mac": "02:00:00:00:cc:01"}, "", object{"mac": "02:00:00:00:cc:09"}, wantMAC("02:00:00:00:cc:01")},
		{"CNI_ARGS before MAC", object{"tapir.dev/mac": "02:00:00:00:cc:01"}, "MAC=02:00:00:00:cc:02", nil, wantMAC("02:00:00:00:cc:02")},
		{"address", object{"tapir.dev/ip": "10.9.0.71"}, "", object{"ipam": ranges("10.9.0.0/24")}, wantIPs("10.9.0.71")},
		{"addresses", object{"tapir.dev/ip": "fd00:9::72, 10.9.0.72"}, "", nil, wantIPs("10.9.0.72", "fd00:9::72")},
		{"CNI_ARGS before addresses", object{"tapir.dev/ip": "10.9.0.72"}, "IP=10.9.0.73,fd00:9::73", nil, wantIPs("10.9.0.73", "fd00:9::73")},
		{"profile", object{"tapir.dev/profile": "timely"}, "", nil, profile("timely")},
		{"off", object{"tapir.dev/xdp": "off"}, "", object{"xdp": object{"mode": "generic", "uplink": "up0"}}, part("", false)},
		{"control for off", nil, "", object{"xdp": object{"mode": "generic"}}, part("generic", true)},
		{"on", object{"tapir.dev/xdp": "generic"}, "", nil, part("generic", true)},
		{"a plain pod's address", object{"tapir.dev/ip": "10.9.0.75", "tapir.dev/mac": "02:00:00:00:cc:03", "tapir.dev/queues": "1", "tapir.dev/xdp": "off"}, "",
			object{"when": "annotated", "ipam": ranges("10.9.0.0/24")}, wantIPs("10.9.0.75")},
		{"with the opt-in", object{"tapir.dev/tap": "true", "tapir.dev/queues": "2"}, "", object{"when": "annotated"}, wantTapOf("tap-eth0", 2, 0, -1)},
		{"the host's TAP", object{"tapir.dev/mac": "02:00:00:00:cc:04", "tapir.dev/xdp": "off"}, "", object{"placement": "host"}, func(t *testing.T, p *pod, _ *types100.Result) {
			if got := p.record().GuestMAC; got != "02:00:00:00:cc:04" {
				t.Errorf("MAC: want the annotation's, got %s", got)
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := n.pod("c1", conf(noRest).with(chosen(tt.annotations)).with(tt.over))
			if ipam, ok := tt.over["ipam"].(object); ok {
				p.conf["ipam"] = ipam.with(object{"reuseDelay": "0s"})
			}
			p.args = tt.args
			r := p.add()
			tt.want(t, p, r)
			p.works("CHECK", object{"prevResult": r})
			p.works("DEL", nil)
		})
	}
}

// A pod that asks for what it may not have, or for what tapir does not understand, does not start without it.
func TestAnnotationsThatAreRefused(t *testing.T) {
	n := newNode(t)
	kept := n.pod("kept", conf(nil))
	kept.add()
	before := n.snapshot()
	for _, tt := range []struct {
		name        string
		annotations object
		over        object
		want        []string
	}{
		{"nothing may be chosen", object{"tapir.dev/queues": "2"}, object{"podAnnotations": nil}, []string{"annotation tapir.dev/queues: the pod may not choose that here", `"podAnnotations"`, "allows tapir.dev/tap"}},
		{"not this one", object{"tapir.dev/mac": "02:00:00:00:cc:01"}, object{"podAnnotations": []string{"queues", "ip"}}, []string{"annotation tapir.dev/mac:", "allows tapir.dev/tap, tapir.dev/queues, tapir.dev/ip"}},
		{"a typo", object{"tapir.dev/queue": "2"}, nil, []string{`annotation tapir.dev/queue: is not known; did you mean "tapir.dev/queues"?`}},
		{"a typo without a list", object{"tapir.dev/Tap": "true"}, object{"podAnnotations": nil, "when": "annotated"}, []string{`did you mean "tapir.dev/tap"?`}},
		{"unknown", object{"tapir.dev/colour": "red"}, nil, []string{"annotation tapir.dev/colour: is not known;", "tapir.dev/xdp"}},
		{"all at once", object{"tapir.dev/queues": "many", "tapir.dev/mac": "01:00:00:00:00:01", "tapir.dev/ip": "10.9.0.7,", "tapir.dev/xdp": "fast", "tapir.dev/ipp": "", "tapir.dev/profile": string(make([]byte, 64))},
			object{"queues": 300}, []string{`annotation tapir.dev/queues: want a number, got "many"`, "annotation tapir.dev/mac: want a unicast MAC", "annotation tapir.dev/ip: want an IP address",
				`annotation tapir.dev/xdp: want one of off, auto, native, generic, got "fast"`, "annotation tapir.dev/ipp", "annotation tapir.dev/profile: want at most 63 bytes", "queues: want 1 to 256, got 300"}},
		{"too many queues", object{"tapir.dev/queues": "257"}, nil, []string{"annotation tapir.dev/queues: want 1 to 256, got 257"}},
		{"queues of Firecracker", object{"tapir.dev/queues": "2"}, object{"vmm": "firecracker"}, []string{"annotation tapir.dev/queues", "Firecracker"}},
		{"the gateway's MAC", object{"tapir.dev/mac": gatewayMAC.String()}, nil, []string{"annotation tapir.dev/mac: want a MAC that is not the gateway's"}},
		{"an address of nobody's", object{"tapir.dev/ip": "10.99.0.1"}, nil, []string{"annotation tapir.dev/ip:", `"10.99.0.1"`}},
		{"the gateway's address", object{"tapir.dev/ip": "10.9.0.1"}, nil, []string{"annotation tapir.dev/ip:", "gateway"}},
		{"two of one set", object{"tapir.dev/ip": "10.9.0.7,10.9.0.8"}, nil, []string{"annotation tapir.dev/ip:", "want one address of"}},
		{"an address of another IPAM", object{"tapir.dev/ip": "10.9.0.7"}, object{"ipam": object{"type": "host-local"}}, []string{"annotation tapir.dev/ip:", `"host-local"`}},
		{"without a TAP", object{"tapir.dev/queues": "2", "tapir.dev/xdp": "auto", "tapir.dev/profile": "x"}, object{"when": "annotated"}, []string{"annotation tapir.dev/queues: the pod has no TAP", "annotation tapir.dev/xdp", "annotation tapir.dev/profile", `tapir.dev/tap: "true"`}},
		{"Kata's own TAP", object{"tapir.dev/queues": "2"}, object{"vmm": "kata"}, []string{"annotation tapir.dev/queues", "Kata makes its own"}},
		{"shortcut on the host", object{"tapir.dev/xdp": "auto"}, object{"placement": "host"}, []string{"annotation tapir.dev/xdp", `placement "host"`}},
		{"a list of what is not", nil, object{"podAnnotations": []string{"queues", "colour"}}, []string{`podAnnotations[1]: want one of tap, queues, mac, ip, profile, xdp`, `"colour"`}},
	} {
		p := n.pod("c1", conf(chosen(tt.annotations)).with(tt.over))
		empty := n.snapshot(p.netns)
		text := p.fails("ADD", codeConfig, nil)
		for _, w := range tt.want {
			if !strings.Contains(text, w) {
				t.Errorf("%s: want %q in: %s", tt.name, w, text)
			}
		}
		if strings.Contains(text, "example.com") {
			t.Errorf("%s: another's annotation is named: %s", tt.name, text)
		}
		wantSame(t, tt.name, empty, n.snapshot(p.netns))
		// What a runtime does next.
		p.works("DEL", object{"ipam": conf(nil)["ipam"]})
	}
	wantSame(t, "after all", before, n.snapshot())
	kept.works("CHECK", nil)
}

// A pod's annotations may change, and the list too: what is there is removed all the same.
func TestRemovalDoesNotReadAnnotations(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", conf(chosen(object{"tapir.dev/queues": "2"})))
	before := n.snapshot(p.netns)
	p.add()
	wantText(t, p.fails("CHECK", codeDiffers, chosen(object{"tapir.dev/queues": "3"})), "queues: want 3, got 2")
	bad := chosen(object{"tapir.dev/colour": "red"}).with(object{"podAnnotations": 5})
	p.works("DEL", bad)
	p.add()
	p.works("GC", bad.with(object{"cni.dev/valid-attachments": []object{}}))
	if l := n.ctl("list", "-o", "json"); strings.Contains(string(l.stdout), "c1") {
		t.Errorf("after GC: %s", l)
	}
	after := n.snapshot(p.netns)
	wantSame(t, "after DEL and GC", without(before, "table ", "route 0.0.0.0", "node-"), without(after, "table ", "route 0.0.0.0", "node-"))
}

// After another plugin an annotation can only ask for what the interface has.
func TestAnnotationsAfterAnotherPlugin(t *testing.T) {
	n := newNode(t)
	p := n.pod("c1", nil)
	ptp := neighbours[1]
	out := p.plugin("ptp", "ADD", ptp.conf.with(object{"cniVersion": "1.1.0", "name": "pods", "ipam": ptp.static(60).with(object{"routes": nil})}))
	if out.code != 0 {
		t.Fatal(out)
	}
	prev := parseResult(t, out.stdout, "1.1.0")
	p.conf = chainConf(object{"prevResult": prev})
	wantText(t, p.fails("ADD", codeConfig, chosen(object{"tapir.dev/xdp": "auto"})), "annotation tapir.dev/xdp", "after another plugin")
	wantText(t, p.fails("ADD", codeConfig, chosen(object{"tapir.dev/ip": "10.250.0.9"})), "10.250.0.9", "the plugin before")
	own := resultAddrs(prev)[0].String()
	p.conf = p.conf.with(chosen(object{"tapir.dev/ip": own, "tapir.dev/queues": "2", "tapir.dev/mac": prev.Interfaces[1].Mac}))
	p.add()
	if got := p.record().Queues; got != 2 {
		t.Errorf("queues: want 2, got %d", got)
	}
	p.works("CHECK", nil)
	p.works("DEL", nil)
}
