package plugin

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/state"
)

// What Kata reads (dan.rs): a default route has no destination, one to a gateway beside the prefix goes before it, pairs are counted.
func TestDANDeviceIsWhatKataReads(t *testing.T) {
	rec := &state.Attachment{
		Key: state.Key{Network: "pods", ContainerID: "c1", IfName: "eth0"}, GuestMAC: "06:00:0a:55:00:05", MTU: 1450, Queues: 4,
		TAP: state.Device{Name: "tprt1a2b3c4d5e"},
		Addresses: []state.Address{
			{Prefix: netip.MustParsePrefix("10.85.0.5/24"), Gateway: netip.MustParseAddr("10.85.0.1")},
			{Prefix: netip.MustParsePrefix("fd00:85::5/128"), Gateway: netip.MustParseAddr("fe80::1")},
		},
		Routes: []state.Route{
			{Dst: netip.MustParsePrefix("0.0.0.0/0"), GW: netip.MustParseAddr("10.85.0.1")},
			{Dst: netip.MustParsePrefix("198.51.100.0/24"), GW: netip.MustParseAddr("10.85.0.9")},
			{Dst: netip.MustParsePrefix("203.0.113.0/24")},
			{Dst: netip.MustParsePrefix("::/0"), GW: netip.MustParseAddr("fe80::1")},
		},
	}
	const want = `{
  "name": "eth0",
  "guest_mac": "06:00:0a:55:00:05",
  "device": {
    "type": "host-tap",
    "tap_name": "tprt1a2b3c4d5e",
    "queue_num": 4,
    "queue_size": 256
  },
  "network_info": {
    "interface": {
      "ip_addresses": [
        "10.85.0.5/24",
        "fd00:85::5/128"
      ],
      "mtu": 1450,
      "ntype": "tuntap",
      "flags": 0
    },
    "routes": [
      {
        "dest": "fe80::1/128",
        "gateway": "",
        "source": "",
        "scope": 253,
        "flags": 0,
        "mtu": 0
      },
      {
        "dest": "",
        "gateway": "10.85.0.1",
        "source": "",
        "scope": 0,
        "flags": 0,
        "mtu": 0
      },
      {
        "dest": "198.51.100.0/24",
        "gateway": "10.85.0.9",
        "source": "",
        "scope": 0,
        "flags": 0,
        "mtu": 0
      },
      {
        "dest": "203.0.113.0/24",
        "gateway": "",
        "source": "",
        "scope": 253,
        "flags": 0,
        "mtu": 0
      },
      {
        "dest": "",
        "gateway": "fe80::1",
        "source": "",
        "scope": 0,
        "flags": 0,
        "mtu": 0
      }
    ],
    "neighbors": [
      {
        "ip_address": "10.85.0.1/32",
        "hardware_addr": "02:74:61:70:69:72",
        "state": 128,
        "flags": 0
      },
      {
        "ip_address": "fe80::1/128",
        "hardware_addr": "02:74:61:70:69:72",
        "state": 128,
        "flags": 0
      }
    ]
  }
}`
	got, err := json.MarshalIndent(danDeviceOf(rec), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("device (-want +got):\n%s", diff)
	}
}

func TestDANNameRefusesWhatIsNoFileName(t *testing.T) {
	for _, id := range []string{"", ".", "..", "a/b", "/", ".hidden", strings.Repeat("x", 251)} {
		if name, err := danName(id); err == nil {
			t.Errorf("id %q: want an error, got %q", id, name)
		}
	}
	for _, id := range []string{"c1", "a.b-c_d", strings.Repeat("x", 250)} {
		if name, err := danName(id); err != nil || name != id+".json" {
			t.Errorf("id %q: got %q, %v", id, name, err)
		}
	}
}
