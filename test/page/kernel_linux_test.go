package page_test

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/google/go-cmp/cmp"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/tap"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const address = "127.0.0.1:10178"

// kernelSays is what the kernel says of an attachment, in the page's words.
func (p pod) kernelSays(t *testing.T, hostEnd string) map[string]string {
	t.Helper()
	count := func(n uint64) string { return strconv.FormatUint(n, 10) }
	says := map[string]string{}
	testnode.In(t, p.netns, func() {
		l, err := netlink.LinkByName("tap-eth0")
		if err != nil {
			t.Fatal(err)
		}
		s := l.Attrs().Statistics
		says["from the guest at the TAP"], says["to the guest at the TAP"], says["ring drops"] = count(s.RxPackets), count(s.TxPackets), count(s.TxDropped)
		says["bytes from the guest"], says["ring"] = count(s.RxBytes), strconv.Itoa(l.Attrs().TxQLen)
	})
	l, err := netlink.LinkByName(hostEnd)
	if err != nil {
		t.Fatal(err)
	}
	says["from the guest at the veth"], says["to the guest at the veth"] = count(l.Attrs().Statistics.RxPackets), count(l.Attrs().Statistics.TxPackets)
	return says
}

// hop is the frames that one place of a way shows.
func hop(way, kind string) string {
	return fmt.Sprintf(`document.querySelector('[data-way=%s] .hop[data-kind=%s]').dataset.frames`, way, kind)
}

// pageSays is the same, as the detail of the attachment that is open shows it.
func pageSays(b *browser) map[string]string {
	says := map[string]string{}
	for what, where := range map[string]string{
		"from the guest at the TAP": hop("toNode", "tap"), "to the guest at the TAP": hop("toGuest", "tap"),
		"from the guest at the veth": hop("toNode", "veth"), "to the guest at the veth": hop("toGuest", "veth"),
		"ring drops":           `document.getElementById("facts").textContent.match(/Dropped([\d,]+) without room/)[1]`,
		"bytes from the guest": `document.getElementById("facts").textContent.match(/Bytes([\d,]+) from the guest/)[1]`,
		"ring":                 `document.getElementById("facts").textContent.match(/Ring([\d,]+) frames/)[1]`,
	} {
		says[what] = strings.ReplaceAll(eval[string](b, where), ",", "")
	}
	return says
}

// What the page shows of real attachments is what the kernel says of their devices.
func TestThePageShowsWhatTheKernelSays(t *testing.T) {
	requireNode(t)
	a, other := add(t, "aaaa"), pod{id: "bbbb", netns: testnode.NewNetns(t)}
	other.cni(t, "ADD")
	q, err := tap.OpenQueues(tap.QueueOptions{Netns: a.netns, Name: "tap-eth0", Count: 1, NAPI: true, VnetHdrSize: 10})
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close() //nolint:errcheck // of the test's end
	startDaemon(t, address)
	b := openBrowser(t, address, 1400, 900)
	b.visit(address)
	b.until(names + `.join() === "shop/name-of-aaaa eth0,shop/name-of-bbbb eth0"`)
	cells := eval[[]string](b, `[...document.querySelector("#body tr[data-id]").cells].map(c => c.textContent).slice(0, 5)`)
	if diff := cmp.Diff([]string{"shop/name-of-aaaa eth0", "pods", "tap-eth0", "10.9.0.2", "1, NAPI"}, cells); diff != "" && !strings.HasPrefix(cells[4], "1, NAPI") {
		t.Errorf("row (-want +got):\n%s", diff)
	}
	b.until(`document.querySelectorAll("#body tr[data-id]")[1].cells[4].textContent === "no VMM"`)
	b.until(`document.getElementById("ipam").textContent.includes("2 leased, 0 resting")`)

	b.run(chromedp.Click(chromedp.CSS(`#body tr[data-id]`)))
	b.until(`document.querySelectorAll("#path .hop").length === 10`)
	host := eval[string](b, `document.getElementById("facts").textContent.match(/(tpr\w+) \(/)[1]`)
	agree := func() {
		t.Helper()
		testnode.Eventually(t, patience, func() error {
			if diff := cmp.Diff(a.kernelSays(t, host), pageSays(b)); diff != "" {
				return fmt.Errorf("(-kernel +page):\n%s", diff)
			}
			return nil
		})
	}

	// The guest sends as itself and as somebody else; the node sends more than the ring takes.
	mac, err := net.ParseMAC(eval[string](b, `document.getElementById("facts").textContent.match(/Guest MAC([0-9a-f:]{17})/)[1]`))
	if err != nil {
		t.Fatal(err)
	}
	own := ethernet(mac, net.IPv4(10, 9, 0, 2))
	forged := ethernet(net.HardwareAddr{2, 0, 0, 0, 0, 9}, net.IPv4(10, 9, 0, 2))
	send := func(frame []byte, n int) {
		t.Helper()
		for range n {
			if _, err := unix.Write(q.FDs()[0], frame); err != nil {
				t.Fatal(err)
			}
		}
	}
	send(own, 300)
	send(forged, 7)
	c, err := net.Dial("udp", "10.9.0.2:9")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	for range 1500 {
		if _, err := c.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	agree()
	says := pageSays(b)
	if n, err := strconv.Atoi(says["ring drops"]); err != nil || n == 0 {
		t.Errorf("the control: want frames that found no room, got %q", says["ring drops"])
	}
	b.until(`document.querySelector('[data-way=toNode] [data-kind=program]').textContent.includes("7 dropped")`)
	b.until(`document.querySelector('[data-way=toNode] [data-kind=program]').textContent.includes("spoof mac 7")`)
	b.until(fmt.Sprintf(`document.querySelector('[data-way=toNode] [data-kind=guest]').textContent.includes("pid %d")`, os.Getpid()))
	b.until(fmt.Sprintf(`document.getElementById("queues").textContent.includes("pid %d") && document.getElementById("queues").textContent.includes("NAPI")`, os.Getpid()))

	// It goes on by itself.
	send(own, 50)
	before := says["from the guest at the TAP"]
	b.until(hop("toNode", "tap") + ` !== "` + before + `"`)
	agree()

	other.cni(t, "DEL")
	b.until(names + `.join() === "shop/name-of-aaaa eth0"`)
	b.until(`document.getElementById("ipam").textContent.includes("1 leased, 1 resting")`)
}
