package page_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/tapir-cni/tapir/agent/measure"
	"github.com/tapir-cni/tapir/agent/page"
	"github.com/tapir-cni/tapir/agent/watch"
	"github.com/tapir-cni/tapir/internal/links"
	"github.com/tapir-cni/tapir/internal/testnode"
	"github.com/tapir-cni/tapir/state"
	"github.com/tapir-cni/tapir/tap/queueiter"
	"github.com/tapir-cni/tapir/xdp"
)

// crowd serves the real page with a node that is made up: attachments of which number i sends i frames of 1000 bytes a second.
type crowd struct {
	address string
	began   time.Time
	count   atomic.Int64
}

func startCrowd(t *testing.T, count int64) *crowd {
	t.Helper()
	testnode.Require(t, "root", "chromium")
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	c := &crowd{address: l.Addr().String(), began: time.Now().Add(-time.Hour)}
	c.count.Store(count)
	s := &http.Server{ReadHeaderTimeout: patience, Handler: page.New(page.Config{
		Sample: func(context.Context) (*measure.Sample, error) { return c.sample(time.Now()), nil },
		Decisions: func() []page.Decision {
			return []page.Decision{{Time: time.Now(), Part: "tuner", Attachment: attachmentKey(7).String(), Kind: "rule", From: "idle", To: "small", Why: "small frames", Result: "done"}}
		},
	}).Handler()}
	ended := make(chan error, 1)
	go func() { ended <- s.Serve(l) }()
	t.Cleanup(func() {
		_ = s.Close()
		if err := <-ended; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	return c
}

func attachmentKey(i int64) state.Key {
	return state.Key{Network: "pods", ContainerID: fmt.Sprintf("%064x", i), IfName: "eth0"}
}

func (c *crowd) sample(now time.Time) *measure.Sample {
	s := &measure.Sample{Time: now, IPAM: []measure.Range{{Range: "10.9.0.1-10.9.15.254", Size: 4094, Leased: int(c.count.Load())}}}
	for i := range c.count.Load() {
		key := attachmentKey(i)
		frames := uint64(now.Sub(c.began).Seconds() * float64(i))
		r := state.Attachment{
			Key: key, Status: state.Ready, Placement: state.PlacementPod, Created: c.began, PodName: fmt.Sprintf("pod-%d", i), PodNamespace: "crowd",
			TAP: state.Device{Name: "tap-eth0", Index: 2000000 + int(i)}, Host: state.Device{Name: fmt.Sprintf("tpr%d", i)}, Pod: state.Device{Name: "eth0"},
			Addresses: []state.Address{{Prefix: netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 9, byte(i >> 8), byte(i)}), 20)}},
		}
		s.Attachments = append(s.Attachments, &measure.Attachment{
			Attachment: &watch.Attachment{ID: watch.ID{Dir: state.DefaultDir, Key: key}, Record: r, Netns: watch.NetnsThere},
			TAP:        &links.Link{Name: "tap-eth0", Queues: 1, TxQueueLen: 1000, Stats: links.Stats{RxFrames: frames, RxBytes: 1000 * frames, TxDropped: uint64(i % 3)}},
			Host:       &links.Link{Stats: links.Stats{RxFrames: frames}},
			Frames:     map[xdp.Reason]xdp.Counter{xdp.ReasonToHost: {Frames: frames, Bytes: 1000 * frames}},
			Queues:     []queueiter.Queue{{Attach: queueiter.Enabled, NAPI: true, Ring: 1000, Holders: []queueiter.Holder{{PID: 1000 + int(i), FD: 9, Comm: "vmm"}}}},
		})
	}
	return s
}

// names are the first cells of the rows in sight, in order.
const names = `[...document.querySelectorAll("#body tr[data-id]")].map(r => r.cells[0].textContent)`

// A thousand rows: the page keeps to few rows, an update is short, and what a person does about it works at once.
func TestAThousandRowsStayUsable(t *testing.T) {
	c := startCrowd(t, 1000)
	b := openBrowser(t, c.address, 1280, 900)
	b.visit(c.address)
	b.until(`document.getElementById("count").textContent === "1,000"`)
	if n := eval[int](b, `document.querySelectorAll("#body tr").length`); n < 10 || n > 80 {
		t.Errorf("want only the rows in sight in the document, got %d", n)
	}
	if got := eval[string](b, `document.getElementById("grid").getAttribute("aria-rowcount")`); got != "1001" {
		t.Errorf("aria-rowcount: want 1001, got %s", got)
	}

	// Sorted by what the guests send, the last is first; it sends 999 frames of 1000 bytes a second.
	b.run(chromedp.Click(chromedp.Search(`//th/button[text()="From guest"]`)))
	b.until(names + `[0] === "crowd/pod-999 eth0"`)
	b.until(`/^(7\.[5-9]|8\.[0-4]) Mbit\/s$/.test(document.querySelector("#body tr[data-id]").cells[7].textContent)`)
	if got := eval[string](b, `document.querySelector("th[aria-sort]").textContent + document.querySelector("th[aria-sort]").getAttribute("aria-sort")`); got != "From guestdescending" {
		t.Errorf("want the heading to say how it is sorted, got %q", got)
	}

	// Updates, drawn each second.
	worst := 0.0
	for range 4 {
		before := eval[float64](b, `performance.getEntriesByName("update")[0].startTime`)
		b.until(fmt.Sprintf(`performance.getEntriesByName("update")[0]?.startTime > %f`, before))
		worst = max(worst, eval[float64](b, `performance.getEntriesByName("update")[0].duration`))
	}
	t.Logf("an update of 1000 rows takes at most %.1f ms", worst)
	if worst > 500 {
		t.Errorf("an update of 1000 rows: want at most half of the second that it has, got %.0f ms", worst)
	}

	// The last row is shown where it belongs when the list is scrolled to its end.
	b.run(chromedp.Evaluate[chromedp.Void](`{ const s = document.getElementById("scroll"); s.scrollTop = s.scrollHeight }`))
	b.until(names + `.at(-1) === "crowd/pod-0 eth0"`)
	b.until(`document.querySelector("#body tr[aria-rowindex='1001']").getBoundingClientRect().bottom <= document.getElementById("scroll").getBoundingClientRect().bottom + 1`)

	// Most of them go while the list stands at its end.
	c.count.Store(20)
	b.until(`document.getElementById("count").textContent === "20"`)
	b.until(names + `.length === 20`)
}

func TestTheKeyboardIsEnough(t *testing.T) {
	c := startCrowd(t, 300)
	b := openBrowser(t, c.address, 1280, 900)
	b.visit(c.address)
	selected := `document.querySelector("#body tr[aria-selected=true]")?.cells[0].textContent`

	b.typed("/")
	b.until(`document.activeElement.id === "filter"`)
	b.run(chromedp.SendKeys(chromedp.CSS("#filter"), "10.9.0.7 vmm"))
	b.until(`document.getElementById("count").textContent === "11 of 300"`) // .7 and .70 to .79
	b.key(kb.Enter)
	b.until(`document.activeElement.id === "grid" && ` + selected + ` === "crowd/pod-7 eth0"`)
	b.key(kb.ArrowDown)
	b.until(selected + ` === "crowd/pod-70 eth0"`)
	b.key(kb.ArrowUp)
	b.key(kb.Enter)
	b.until(`!document.getElementById("detail").hidden && document.activeElement.id === "detail-name"`)
	b.until(`document.getElementById("detail-name").textContent.includes("` + attachmentKey(7).ContainerID + `")`)
	b.until(`document.getElementById("own-decisions").textContent.includes("idle → small: small frames")`)
	b.key(kb.Escape)
	b.until(`document.getElementById("detail").hidden && document.activeElement.id === "grid"`)

	b.typed("/")
	b.key(kb.Escape)
	b.until(`document.getElementById("count").textContent === "300" && document.getElementById("filter").value === ""`)
	b.key(kb.Escape)
	b.until(`document.activeElement.id === "grid"`)
	b.key(kb.End)
	b.until(selected + ` === "crowd/pod-299 eth0"`)
	// The chosen row is in sight, and the table says which it is.
	b.until(`(() => { const r = document.getElementById(document.getElementById("grid").getAttribute("aria-activedescendant")).getBoundingClientRect(),
		s = document.getElementById("scroll").getBoundingClientRect(); return r.top >= s.top && r.bottom <= s.bottom + 1 })()`)
	b.key(kb.Home)
	b.until(selected + ` === "crowd/pod-0 eth0"`)
	b.key(kb.PageDown)
	b.until(selected + ` !== "crowd/pod-0 eth0"`)

	// By the tabulator one comes to each heading, and Enter sorts.
	b.run(chromedp.Focus(chromedp.CSS("#filter")))
	for range 20 {
		b.key(kb.Tab)
		if eval[string](b, `document.activeElement.textContent`) == "Dropped" {
			break
		}
	}
	b.key(kb.Enter)
	b.until(`document.querySelector("th[aria-sort=descending]")?.textContent === "Dropped"`)
	if outline := eval[string](b, `getComputedStyle(document.activeElement).outlineStyle`); outline != "solid" {
		t.Errorf("want the focus to be seen, got outline %q", outline)
	}
}

// luminance is that of WCAG 2 for a colour as getComputedStyle gives it.
const luminance = `(c => { const [r, g, b] = c.match(/[\d.]+/g).map(v => { v /= 255; return v <= .04045 ? v / 12.92 : ((v + .055) / 1.055) ** 2.4 });
	return .2126 * r + .7152 * g + .0722 * b })`

func TestDarkAndLight(t *testing.T) {
	c := startCrowd(t, 30)
	b := openBrowser(t, c.address, 1280, 900)
	background := map[string]float64{}
	for _, scheme := range []string{"light", "dark"} {
		b.run(command(emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}}}))
		b.visit(c.address)
		b.run(chromedp.Click(chromedp.CSS(`#body tr[data-id]`)))
		b.until(`document.querySelectorAll("#path .hop").length > 0`)
		background[scheme] = eval[float64](b, luminance+`(getComputedStyle(document.body).backgroundColor)`)
		// All text that is shown can be read: contrast 4.5 to what is behind it (WCAG 2, 1.4.3).
		bad := eval[[]string](b, `(() => { const lum = `+luminance+`, bad = [];
			const behind = e => { for (; e; e = e.parentElement) { const c = getComputedStyle(e).backgroundColor; if (!/, 0\)$/.test(c)) return c } return "rgb(255, 255, 255)" };
			for (const e of document.querySelectorAll("body *")) {
				if (!e.checkVisibility() || e.closest("script") || ![...e.childNodes].some(n => n.nodeType === 3 && n.data.trim())) continue;
				const a = lum(getComputedStyle(e).color), b = lum(behind(e)), contrast = (Math.max(a, b) + .05) / (Math.min(a, b) + .05);
				if (contrast < 4.5) bad.push(e.tagName + " " + e.className + " " + e.textContent.slice(0, 30) + ": " + contrast.toFixed(2));
			} return bad })()`)
		if len(bad) > 0 {
			t.Errorf("%s: want contrast 4.5, got less:\n%s", scheme, strings.Join(bad, "\n"))
		}
	}
	if background["light"] < .8 || background["dark"] > .1 {
		t.Errorf("want a light and a dark background, got luminances %v", background)
	}
}

// At the width of a small phone nothing is wider than the screen, and what matters most is there.
func TestNarrowScreens(t *testing.T) {
	c := startCrowd(t, 50)
	for _, width := range []int{360, 600, 800} {
		b := openBrowser(t, c.address, width, 740)
		b.visit(c.address)
		b.run(chromedp.Click(chromedp.CSS(`#body tr[data-id]`)))
		b.until(`document.querySelectorAll("#path .hop").length > 0 && document.querySelectorAll("#facts dt").length > 5`)
		if got := eval[int](b, `document.documentElement.scrollWidth`); got > width {
			wide := eval[[]string](b, fmt.Sprintf(`[...document.querySelectorAll("body *")].filter(e => e.checkVisibility() && e.getBoundingClientRect().right > %d + .5).map(e => e.tagName + "#" + e.id + "." + e.className)`, width))
			t.Errorf("width %d: want no scrolling sideways, got %d: %q", width, got, wide)
		}
		heads := eval[[]string](b, `[...document.querySelectorAll("th")].filter(e => e.checkVisibility()).map(e => e.textContent)`)
		for _, want := range []string{"Attachment", "From guest", "To guest", "Dropped"} {
			if !strings.Contains(strings.Join(heads, ","), want) {
				t.Errorf("width %d: want column %q, got %q", width, want, heads)
			}
		}
		if width == 360 && len(heads) > 5 {
			t.Errorf("width 360: want few columns, got %q", heads)
		}
	}
}

// A screen reader is told what the table is, and of changes only that the page is alive.
func TestTheTableIsATableToAssistiveTechnology(t *testing.T) {
	c := startCrowd(t, 30)
	b := openBrowser(t, c.address, 1280, 900)
	b.visit(c.address)
	var got struct {
		Role, Label, Cells, Live string
		Unnamed                  []string
	}
	text := eval[string](b, `JSON.stringify({
		Role: document.getElementById("grid").getAttribute("role"),
		Label: document.getElementById(document.getElementById("grid").getAttribute("aria-labelledby")).textContent,
		Cells: [...new Set([...document.querySelectorAll("#body tr[data-id] td")].map(c => c.getAttribute("role")))].join(),
		Live: [...document.querySelectorAll("[aria-live],[role=status],[role=alert],[role=log]")].map(e => e.id).join(),
		Unnamed: [...document.querySelectorAll("button,input,a")].filter(e => !(e.textContent.trim() || e.getAttribute("aria-label"))).map(e => e.outerHTML) })`)
	if err := json.Unmarshal([]byte(text), &got); err != nil {
		t.Fatal(err)
	}
	if got.Role != "grid" || got.Label != "Attachments" || got.Cells != "gridcell" || got.Live != "state" || len(got.Unnamed) > 0 {
		t.Errorf("got %+v", got)
	}
}

// While nobody looks nothing is asked, and when somebody does it goes on.
func TestNothingIsAskedWhileHidden(t *testing.T) {
	c := startCrowd(t, 5)
	b := openBrowser(t, c.address, 1280, 900)
	b.visit(c.address)
	hide := func(hidden bool) {
		b.run(chromedp.Evaluate[chromedp.Void](fmt.Sprintf(`Object.defineProperty(document, "hidden", {value: %t, configurable: true}); document.dispatchEvent(new Event("visibilitychange"))`, hidden)))
	}
	hide(true)
	b.until(`document.getElementById("state").textContent === "paused"`)
	asked := func() int {
		b.mu.Lock()
		defer b.mu.Unlock()
		return len(b.requests)
	}
	time.Sleep(200 * time.Millisecond) // what was under way
	before := asked()
	time.Sleep(2500 * time.Millisecond)
	if n := asked() - before; n > 0 {
		t.Errorf("hidden: want no requests, got %d", n)
	}
	hide(false)
	b.until(`document.getElementById("state").textContent === "live"`)
	testnode.Eventually(t, patience, func() error { // the control: shown it asks again and again
		if n := asked() - before; n < 6 {
			return fmt.Errorf("want two rounds of requests, got %d requests", n)
		}
		return nil
	})
}
