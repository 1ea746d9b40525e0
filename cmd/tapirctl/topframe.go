package main

import (
	"fmt"
	"strings"
	"unicode/utf8"
)

// Colours, as SGR parameters (ECMA-48, 8.3.117).
const (
	plainText = ""
	headline  = "1"
	heading   = "7"
	alarm     = "31"
	faint     = "2"
)

// painter puts colours on text, or does not.
type painter bool

func (p painter) paint(colour, text string) string {
	if !p || colour == plainText || text == "" {
		return text
	}
	return "\x1b[" + colour + "m" + text + "\x1b[0m"
}

// column is one of the table. Those of a higher rank go first where the terminal is narrow.
type column struct {
	name   string
	width  int
	right  bool
	rank   int
	text   func(topRow) string
	colour func(topRow) string
}

// The least width of the column that takes what the others leave, before they make room; and its greatest.
const (
	minName = 16
	maxName = 48
)

var topColumns = []column{
	{name: "ATTACHMENT", text: topRow.name, colour: func(r topRow) string {
		if r.Status != "ready" {
			return alarm
		}
		return plainText
	}},
	{name: "DEVICE", width: 15, rank: 6, text: func(r topRow) string { return r.Device }},
	{name: "PROGRAM", width: 15, rank: 5, text: func(r topRow) string { return dash(r.Program) }},
	{name: "QUEUES", width: 11, rank: 2, text: topRow.queues},
	{name: "FROM", width: 9, right: true, text: func(r topRow) string { return rate(r.Rates, r.rates().FromBits) }},
	{name: "FRAMES", width: 7, right: true, rank: 4, text: func(r topRow) string { return rate(r.Rates, r.rates().FromFrames) }},
	{name: "LAST MINUTE", width: 15, rank: 3, text: func(r topRow) string { return sparkline(r.from, 15) }},
	{name: "TO", width: 9, right: true, text: func(r topRow) string { return rate(r.Rates, r.rates().ToBits) }},
	{name: "FRAMES", width: 7, right: true, rank: 4, text: func(r topRow) string { return rate(r.Rates, r.rates().ToFrames) }},
	{name: "LAST MINUTE", width: 15, rank: 3, text: func(r topRow) string { return sparkline(r.to, 15) }},
	{name: "DROPPED", width: 9, right: true, text: func(r topRow) string { return fmt.Sprint(r.dropped()) }, colour: func(r topRow) string {
		if r.rates().Dropped > 0 {
			return alarm
		}
		return plainText
	}},
	{name: "SHORTCUT", width: 8, rank: 7, text: func(r topRow) string { return dash(r.Shortcut) }},
}

// frame draws what fits into a terminal of so many columns and lines, a string a line. 0 lines: all.
func (m *topModel) frame(width, height int, p painter) []string {
	columns, name := fit(width)
	lines := []string{p.paint(headline, clip(m.summary(), width)), p.paint(faint, clip(m.legend(), width))}
	if height > 0 && height < 5 { // room for a table of one line, or for none
		lines = lines[:1]
	}
	if len(m.problems) > 0 {
		lines = append(lines, p.paint(alarm, clip(strings.ReplaceAll(m.problems[0], "\n", " "), width)))
	}
	var head []string
	for _, c := range columns {
		head = append(head, c.cell(c.name, name))
	}
	lines = append(lines, p.paint(heading, pad(strings.Join(head, " "), width, false)))
	rows := len(m.rows)
	if height > 0 {
		rows = max(0, min(rows, height-len(lines)))
	}
	m.first = max(0, min(m.first, len(m.rows)-rows))
	for _, r := range m.rows[m.first : m.first+rows] {
		var cells []string
		for _, c := range columns {
			text := c.cell(c.text(r), name)
			if c.colour != nil {
				text = p.paint(c.colour(r), text)
			}
			cells = append(cells, text)
		}
		lines = append(lines, strings.TrimRight(strings.Join(cells, " "), " "))
	}
	if height > 0 && len(lines) > height {
		lines = lines[:height]
	}
	return lines
}

// fit chooses the columns for a width, and the width of the first.
func fit(width int) (columns []column, name int) {
	const highest = 7
	for rank := highest; rank >= 0; rank-- {
		columns, name = columns[:0], width
		for _, c := range topColumns {
			if c.rank <= rank {
				columns = append(columns, c)
				if c.width > 0 {
					name -= c.width + 1
				}
			}
		}
		if name >= minName {
			break
		}
	}
	for name < 1 && len(columns) > 1 { // narrower than anybody reads
		name += columns[len(columns)-1].width + 1
		columns = columns[:len(columns)-1]
	}
	return columns, min(max(name, 1), maxName)
}

func (c column) cell(text string, name int) string {
	width := c.width
	if width == 0 {
		width = name
	}
	return pad(clip(text, width), width, c.right)
}

func (m *topModel) summary() string {
	attached, pending := 0, 0
	var sum topRates
	for _, r := range m.rows {
		if r.Attached > 0 {
			attached++
		}
		if r.Status != "ready" {
			pending++
		}
		sum.FromBits, sum.ToBits, sum.Dropped = sum.FromBits+r.rates().FromBits, sum.ToBits+r.rates().ToBits, sum.Dropped+r.rates().Dropped
	}
	text := fmt.Sprintf("tapir %s  %d attachments, %d VMMs  from %sbit/s, to %sbit/s, dropped %s/s", m.at.Format("15:04:05"), len(m.rows), attached,
		scale(sum.FromBits), scale(sum.ToBits), scale(sum.Dropped))
	if pending > 0 {
		text += fmt.Sprintf("; %d not ready", pending)
	}
	return text
}

func (m *topModel) legend() string {
	order := "▼"
	if m.reverse {
		order = "▲"
	}
	text := fmt.Sprintf("sorted by %s %s", m.sort, order)
	if m.paused {
		text += ", paused"
	}
	var keys []string
	for _, k := range sortKeys {
		keys = append(keys, string(k.key)+" "+k.name)
	}
	return text + "  |  " + strings.Join(keys, ", ") + ", r reverse, p pause, q quit"
}

func rate(known *topRates, v float64) string {
	if known == nil {
		return "-"
	}
	return scale(v)
}

// scale writes a number with the prefix of its thousands, in at most six characters: "0", "999", "1.25k", "40.0M".
func scale(v float64) string {
	const prefixes = "kMGT"
	if v < 999.5 {
		return fmt.Sprintf("%.0f", v)
	}
	i := -1
	for v >= 999.5 && i < len(prefixes)-1 {
		v, i = v/1000, i+1
	}
	digits := 2
	switch {
	case v >= 99.95:
		digits = 0
	case v >= 9.995:
		digits = 1
	}
	return fmt.Sprintf("%.*f%c", digits, v, prefixes[i])
}

// bars are the heights of a sparkline.
var bars = []rune("▁▂▃▄▅▆▇█")

// sparkline draws a minute's samples in so many cells, the newest on the right, each the highest of those that fall into it, against the highest of all.
// A cell without a sample is blank, and one in which nothing moved is a dot.
func sparkline(samples []float64, cells int) string {
	highest := 0.0
	for _, v := range samples {
		highest = max(highest, v)
	}
	var b strings.Builder
	for cell := range cells {
		// The places of the cell, counted from the oldest of a whole minute.
		from, to := cell*minute/cells-(minute-len(samples)), (cell+1)*minute/cells-(minute-len(samples))
		if to <= 0 {
			b.WriteByte(' ')
			continue
		}
		v := 0.0
		for _, s := range samples[max(from, 0):to] {
			v = max(v, s)
		}
		if v <= 0 {
			b.WriteRune('·')
			continue
		}
		b.WriteRune(bars[min(int(v/highest*float64(len(bars))), len(bars)-1)])
	}
	return b.String()
}

// clip cuts text to a width, with a sign that it did. Each rune takes one cell: names are ASCII, and the bars are narrow.
func clip(text string, width int) string {
	if utf8.RuneCountInString(text) <= width {
		return text
	}
	if width < 1 {
		return ""
	}
	return string([]rune(text)[:width-1]) + "…"
}

func pad(text string, width int, right bool) string {
	space := strings.Repeat(" ", max(0, width-utf8.RuneCountInString(text)))
	if right {
		return space + text
	}
	return text + space
}
