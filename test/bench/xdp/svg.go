package main

import (
	"bytes"
	"encoding/xml"
	"fmt"
	"math"
)

// A chart is a bar chart: values above zero, all in one unit.
type chart struct {
	Title, Unit string
	Digits      int // of a value's label
	Legend      []legend
	Groups      []group
}

type legend struct{ Class, Label string }

type group struct {
	Label string
	Bars  []bar
}

// A bar's Low and High are drawn as a thin line over it.
type bar struct {
	Class            string // of palette
	Value, Low, High float64
}

// Measures in pixels.
const (
	chartWidth  = 760
	plotLeft    = 56
	plotRight   = chartWidth - 16
	plotTop     = 84
	plotHeight  = 220
	plotBottom  = plotTop + plotHeight
	chartHeight = plotBottom + 36
	widestBar   = 64
	groupPart   = 0.86 // of a group's room, for its bars
	letter      = 6.8  // of an average letter, at least
)

// palette has colours that stay apart for the colour-blind, on a ground of the picture's own, so that a page's does not
// matter. A viewer that prefers dark gets its own.
const palette = `
.ground{fill:#ffffff;stroke:#d0d7de}.text{fill:#1f2328}.dim{fill:#59636e}.grid{stroke:#d8dee4}.whisker{stroke:#1f2328}
.bridge,.bridge-tc{fill:#8c959f}.default{fill:#56a0d8}.xdp{fill:#0b6e4f}.limit{fill:#ffffff;stroke:#8c959f;stroke-dasharray:4 3}
text{font:12px system-ui,-apple-system,"Segoe UI",Helvetica,Arial,sans-serif}.title{font-size:15px;font-weight:600}
@media (prefers-color-scheme:dark){
.ground{fill:#0d1117;stroke:#30363d}.text{fill:#e6edf3}.dim{fill:#9198a1}.grid{stroke:#21262d}.whisker{stroke:#e6edf3}
.bridge,.bridge-tc{fill:#6e7781}.default{fill:#3f7fb5}.xdp{fill:#3fb68b}.limit{fill:#0d1117;stroke:#9198a1}}
`

// svg draws the chart.
func (c chart) svg() []byte {
	var out bytes.Buffer
	fmt.Fprintf(&out, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img">`+"\n", chartWidth, chartHeight, chartWidth, chartHeight)
	fmt.Fprintf(&out, "<title>%s, %s</title>\n<style>%s</style>\n", escape(c.Title), escape(c.Unit), palette)
	fmt.Fprintf(&out, `<rect class="ground" x="0.5" y="0.5" width="%d" height="%d" rx="6"/>`+"\n", chartWidth-1, chartHeight-1)
	text(&out, "title text", plotLeft-40, 26, "start", c.Title)
	text(&out, "dim", plotRight, 26, "end", c.Unit+", median and quartiles")
	x := float64(plotLeft - 40)
	for _, l := range c.Legend {
		fmt.Fprintf(&out, `<rect class="%s" x="%.1f" y="42" width="12" height="12" rx="2"/>`+"\n", l.Class, x)
		text(&out, "text", x+18, 52, "start", l.Label)
		x += 18 + letter*float64(len(l.Label)) + 24
	}
	step, top := scale(c.highest())
	y := func(value float64) float64 { return plotBottom - value/top*plotHeight }
	for tick := 0.0; tick <= top+step/2; tick += step {
		fmt.Fprintf(&out, `<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>`+"\n", plotLeft, plotRight, y(tick), y(tick))
		text(&out, "dim", plotLeft-8, y(tick)+4, "end", fmt.Sprintf("%g", math.Round(tick*1000)/1000))
	}
	room := float64(plotRight-plotLeft) / float64(len(c.Groups))
	for i, g := range c.Groups {
		middle := plotLeft + room*(float64(i)+0.5)
		text(&out, "text", middle, plotBottom+20, "middle", g.Label)
		width := min(room*groupPart/float64(len(g.Bars)), widestBar)
		for j, b := range g.Bars {
			b.draw(&out, middle+width*(float64(j)-float64(len(g.Bars))/2), width, y, c.Digits)
		}
	}
	out.WriteString("</svg>\n")
	return out.Bytes()
}

func (b bar) draw(out *bytes.Buffer, left, width float64, y func(float64) float64, digits int) {
	fmt.Fprintf(out, `<rect class="%s" x="%.1f" y="%.1f" width="%.1f" height="%.1f" rx="1.5"/>`+"\n", b.Class, left+1.5, y(b.Value), width-3, plotBottom-y(b.Value))
	middle := left + width/2
	fmt.Fprintf(out, `<line class="whisker" x1="%.1f" x2="%.1f" y1="%.1f" y2="%.1f"/>`+"\n", middle, middle, y(b.Low), y(b.High))
	text(out, "text", middle, y(max(b.High, b.Value))-5, "middle", fmt.Sprintf("%.*f", digits, b.Value))
}

func (c chart) highest() float64 {
	var most float64
	for _, g := range c.Groups {
		for _, b := range g.Bars {
			most = max(most, b.Value, b.High)
		}
	}
	return most
}

// scale gives a round step of the axis and its end, a little above the highest value: four to eight steps.
func scale(most float64) (step, top float64) {
	if most <= 0 {
		return 1, 1
	}
	most *= 1.05 // room for a label
	step = math.Pow(10, math.Floor(math.Log10(most/4)))
	for _, times := range []float64{1, 2, 5} {
		if most/(step*times) <= 8 {
			step *= times
			break
		}
	}
	return step, step * math.Ceil(most/step)
}

func text(out *bytes.Buffer, class string, x, y float64, anchor, content string) {
	fmt.Fprintf(out, `<text class="%s" x="%.1f" y="%.1f" text-anchor="%s">%s</text>`+"\n", class, x, y, anchor, escape(content))
}

func escape(s string) string {
	var out bytes.Buffer
	if xml.EscapeText(&out, []byte(s)) != nil {
		return "" // a bytes.Buffer takes everything
	}
	return out.String()
}
