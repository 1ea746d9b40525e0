package metrics_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
	"go.yaml.in/yaml/v3"
)

const dir = "../../deploy/monitoring/"

// check holds a query against what is known, and gives the labels that its series may have.
func (k known) check(query string) (have map[string]bool, err error) {
	expr, err := parser.NewParser(parser.Options{}).ParseExpr(query)
	if err != nil {
		return nil, err
	}
	var errs []error
	have = map[string]bool{}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		v, ok := n.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		series, ok := k[v.Name]
		if !ok {
			errs = append(errs, fmt.Errorf("the exporter has no %q", v.Name))
			return nil
		}
		for l := range maps.Keys(series) {
			have[l] = true
		}
		for _, m := range v.LabelMatchers {
			switch {
			case m.Name == model.MetricNameLabel:
			case series[m.Name] == nil:
				errs = append(errs, fmt.Errorf("%s has no label %q", v.Name, m.Name))
			case m.Type == labels.MatchEqual && !series[m.Name][m.Value] && !series[m.Name][""]:
				errs = append(errs, fmt.Errorf("%s is never with %s=%q", v.Name, m.Name, m.Value))
			}
		}
		return nil
	})
	known := func(what string, names []string) {
		for _, l := range names {
			if !have[l] {
				errs = append(errs, fmt.Errorf("%s: no series of the query has label %q", what, l))
			}
		}
	}
	parser.Inspect(expr, func(n parser.Node, _ []parser.Node) error {
		switch n := n.(type) {
		case *parser.AggregateExpr:
			known("aggregation", n.Grouping)
		case *parser.BinaryExpr:
			if n.VectorMatching != nil {
				known("matching", append(n.VectorMatching.MatchingLabels, n.VectorMatching.Include...))
			}
		}
		return nil
	})
	return have, errors.Join(errs...)
}

var (
	legendLabel     = regexp.MustCompile(`\{\{\s*([a-z_]+)\s*\}\}`)
	annotationLabel = regexp.MustCompile(`\$labels\.([a-z_]+)`)
)

func TestAlertRules(t *testing.T) {
	k := export(t)
	k.documented(t, "tapir_uplink_")
	groups, errs := rulefmt.ParseFile(dir+"rules.yaml", false, model.LegacyValidation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	if len(errs) > 0 {
		t.Fatal(errs)
	}
	rules := 0
	for _, g := range groups.Groups {
		for _, r := range g.Rules {
			rules++
			have, err := k.check(r.Expr)
			if err != nil {
				t.Errorf("%s: %v", r.Alert, err)
			}
			for _, text := range r.Annotations {
				for _, l := range annotationLabel.FindAllStringSubmatch(text, -1) {
					if !have[l[1]] {
						t.Errorf("%s: no series has label %q of an annotation", r.Alert, l[1])
					}
				}
			}
		}
	}
	if rules < 10 {
		t.Errorf("want the alerts, got %d", rules)
	}
}

// The operator's file is the plain one in another wrapping.
func TestTheOperatorsRulesAreTheSame(t *testing.T) {
	var plain, wrapped struct {
		Groups     any    `yaml:"groups"`
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Spec       struct {
			Groups any `yaml:"groups"`
		} `yaml:"spec"`
	}
	for file, to := range map[string]any{"rules.yaml": &plain, "prometheusrule.yaml": &wrapped} {
		data, err := os.ReadFile(dir + file)
		if err != nil {
			t.Fatal(err)
		}
		if err := yaml.Unmarshal(data, to); err != nil {
			t.Fatal(err)
		}
	}
	if plain.Groups == nil || wrapped.Kind != "PrometheusRule" || wrapped.APIVersion != "monitoring.coreos.com/v1" {
		t.Fatalf("want groups and a PrometheusRule, got %+v", wrapped)
	}
	if diff := cmp.Diff(plain.Groups, wrapped.Spec.Groups); diff != "" {
		t.Errorf("(-rules.yaml +prometheusrule.yaml):\n%s", diff)
	}
}

// dashboard is what is read of Grafana's JSON.
type dashboard struct {
	Templating struct {
		List []struct {
			Name, Type, Definition string
		}
	}
	Panels []struct {
		ID      int
		Type    string
		Title   string
		Targets []struct{ Expr, LegendFormat string }
	}
}

var labelValues = regexp.MustCompile(`^label_values\((.*), ([a-z_]+)\)$`)

func TestDashboard(t *testing.T) {
	k := export(t)
	k.documented(t, "tapir_uplink_")
	data, err := os.ReadFile(dir + "dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	var d dashboard
	if err := json.Unmarshal(data, &d); err != nil {
		t.Fatal(err)
	}
	variables := map[string]bool{"__rate_interval": true}
	for _, v := range d.Templating.List {
		variables[v.Name] = true
	}
	// Grafana puts values in place of its variables before Prometheus sees a query.
	interpolate := func(query string) string {
		for _, v := range regexp.MustCompile(`\$\{?([a-z_]+)\}?`).FindAllStringSubmatch(query, -1) {
			if !variables[v[1]] {
				t.Errorf("no variable %q in %s", v[1], query)
			}
		}
		query = strings.ReplaceAll(query, "$__rate_interval", "5m")
		return regexp.MustCompile(`\$[a-z_]+`).ReplaceAllString(query, "a")
	}
	for _, v := range d.Templating.List {
		if v.Type != "query" {
			continue
		}
		part := labelValues.FindStringSubmatch(v.Definition)
		if part == nil {
			t.Errorf("variable %s: %s", v.Name, v.Definition)
			continue
		}
		if have, err := k.check(interpolate(part[1])); err != nil || !have[part[2]] {
			t.Errorf("variable %s: want label %q, got %v, %v", v.Name, part[2], have, err)
		}
	}
	ids, queries := map[int]bool{}, 0
	for _, p := range d.Panels {
		if ids[p.ID] {
			t.Errorf("panel %q: id %d is another's", p.Title, p.ID)
		}
		ids[p.ID] = true
		for _, target := range p.Targets {
			queries++
			have, err := k.check(interpolate(target.Expr))
			if err != nil {
				t.Errorf("panel %q: %v", p.Title, err)
			}
			for _, l := range legendLabel.FindAllStringSubmatch(target.LegendFormat, -1) {
				if !have[l[1]] {
					t.Errorf("panel %q: no series has label %q of the legend", p.Title, l[1])
				}
			}
		}
	}
	if queries < 20 {
		t.Errorf("want the panels' queries, got %d", queries)
	}
}

// What is wrong is seen.
func TestWrongQueriesAreSeen(t *testing.T) {
	k := known{}
	k.add("tapir_tap_queues", map[string]string{"state": "enabled", "instance": "a"})
	if _, err := k.check(`sum by (state) (tapir_tap_queues{state="enabled"})`); err != nil {
		t.Error(err)
	}
	for query, want := range map[string]string{
		`tapir_tap_queue`:                            `no "tapir_tap_queue"`,
		`tapir_tap_queues{stat="enabled"}`:           `no label "stat"`,
		`tapir_tap_queues{state="enabld"}`:           `never with state="enabld"`,
		`sum by (pod) (tapir_tap_queues)`:            `no series of the query has label "pod"`,
		`rate(tapir_tap_queues)`:                     `expected type range vector`,
		`tapir_tap_queues / on (a) tapir_tap_queues`: `has label "a"`,
	} {
		if _, err := k.check(query); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: want %q, got %v", query, want, err)
		}
	}
}
