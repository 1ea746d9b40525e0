package install

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
)

// ErrNoRanges says that the configuration waits for the node's ranges.
var ErrNoRanges = errors.New("the node has no ranges yet: the Node's podCIDRs are not set, and the template's ipam has none")

var errNoTapir = errors.New(`plugins: want one of type "tapir", got none`)

// list is a configuration list with all keys that it has, also those that tapir does not know.
type list struct {
	keys    map[string]any
	plugins []map[string]any
}

// parse reads a configuration list, or a single configuration as one with that plugin alone.
func parse(data []byte) (list, error) {
	var l list
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.UseNumber()
	if err := dec.Decode(&l.keys); err != nil {
		return l, fmt.Errorf("want a JSON object: %w", err)
	}
	plugins, isList := l.keys["plugins"].([]any)
	if !isList {
		if _, ok := l.keys["type"].(string); !ok {
			return l, errors.New(`want "plugins", a list, got none`)
		}
		plugins = []any{l.keys}
		l.keys = map[string]any{"cniVersion": l.keys["cniVersion"], "name": l.keys["name"]}
	}
	for i, p := range plugins {
		plugin, ok := p.(map[string]any)
		if !ok {
			return l, fmt.Errorf("plugins[%d]: want an object", i)
		}
		if kind, _ := plugin["type"].(string); kind == "" {
			return l, fmt.Errorf("plugins[%d].type: want the name of a plugin, got none", i)
		}
		l.plugins = append(l.plugins, plugin)
	}
	if len(l.plugins) == 0 {
		return l, errors.New("plugins: want one or more, got none")
	}
	if name, _ := l.keys["name"].(string); name == "" {
		return l, errors.New("name: want the network's name, got none")
	}
	return l, nil
}

// ours is the tapir plugin's object; nil where there is none.
func (l list) ours() map[string]any {
	for _, p := range l.plugins {
		if p["type"] == "tapir" {
			return p
		}
	}
	return nil
}

// types are the plugins that the list calls, IPAM's too, each once.
func (l list) types() (all []string) {
	seen := map[string]bool{}
	add := func(kind string) {
		if kind != "" && !seen[kind] {
			seen[kind] = true
			all = append(all, kind)
		}
	}
	for _, p := range l.plugins {
		kind, _ := p["type"].(string)
		add(kind)
		if ipam, ok := p["ipam"].(map[string]any); ok {
			kind, _ := ipam["type"].(string)
			add(kind)
		}
	}
	return all
}

func (l list) write() ([]byte, error) {
	keys := make(map[string]any, len(l.keys)+1)
	for k, v := range l.keys {
		keys[k] = v
	}
	keys["plugins"] = l.plugins
	data, err := json.MarshalIndent(keys, "", "  ")
	return append(data, '\n'), err
}

// fill gives the tapir plugin what only the node knows.
func (l list) fill(ranges []netip.Prefix, annotations []string) error {
	tapir := l.ours()
	if tapir == nil {
		return errNoTapir
	}
	if _, ok := tapir["podAnnotations"]; !ok && len(annotations) > 0 {
		tapir["podAnnotations"] = annotations
	}
	if len(annotations) > 0 || tapir["podAnnotations"] != nil {
		capability(tapir, "io.kubernetes.cri.pod-annotations")
	}
	ipam, ok := tapir["ipam"].(map[string]any)
	if !ok || ipam["type"] != "tapir-ipam" {
		return nil
	}
	if has, ok := ipam["ranges"].([]any); ok && len(has) > 0 {
		return nil
	}
	if len(ranges) == 0 {
		return ErrNoRanges
	}
	var sets [][]map[string]any
	for _, r := range ranges {
		sets = append(sets, []map[string]any{{"subnet": r.String()}})
	}
	ipam["ranges"] = sets
	if ipam["routes"] == nil {
		ipam["routes"] = defaultRoutes(ranges)
	}
	return nil
}

// ranges are those that fill gave the list; none where it has others.
func (l list) ranges() (all []netip.Prefix) {
	ipam, _ := l.ours()["ipam"].(map[string]any)
	sets, _ := ipam["ranges"].([]any)
	for _, set := range sets {
		ranges, _ := set.([]any)
		if len(ranges) != 1 {
			return nil
		}
		one, _ := ranges[0].(map[string]any)
		subnet, _ := one["subnet"].(string)
		p, err := netip.ParsePrefix(subnet)
		if err != nil {
			return nil
		}
		all = append(all, p)
	}
	return all
}

// defaultRoutes are one for each family that the ranges have.
func defaultRoutes(ranges []netip.Prefix) (routes []map[string]any) {
	has := map[bool]bool{}
	for _, r := range ranges {
		is4 := r.Addr().Is4()
		if has[is4] {
			continue
		}
		has[is4] = true
		dst := "::/0"
		if is4 {
			dst = "0.0.0.0/0"
		}
		routes = append(routes, map[string]any{"dst": dst})
	}
	return routes
}

// capability has the runtime give the plugin what it has under that name.
func capability(plugin map[string]any, name string) {
	all, ok := plugin["capabilities"].(map[string]any)
	if !ok {
		all = map[string]any{}
		plugin["capabilities"] = all
	}
	if _, ok := all[name]; !ok {
		all[name] = true
	}
}

// without is the list without tapir.
func (l list) without() list {
	out := list{keys: l.keys}
	for _, p := range l.plugins {
		if p["type"] != "tapir" {
			out.plugins = append(out.plugins, p)
		}
	}
	return out
}

// same tells whether both say the same, however they are written.
func (l list) same(other list) bool {
	a, errA := l.write()
	b, errB := other.write()
	return errA == nil && errB == nil && bytes.Equal(a, b)
}

// extend is another network's list with the template's tapir at its end; of one that the list has already nothing stays.
func extend(other, template []byte, annotations []string) (list, error) {
	from, err := parse(template)
	if err != nil {
		return list{}, fmt.Errorf("template: %w", err)
	}
	tapir := from.ours()
	if tapir == nil {
		return list{}, fmt.Errorf("template: %w", errNoTapir)
	}
	l, err := parse(other)
	if err != nil {
		return list{}, err
	}
	l = l.without()
	delete(tapir, "ipam") // the addresses are the other plugin's
	l.plugins = append(l.plugins, tapir)
	return l, l.fill(nil, annotations)
}
