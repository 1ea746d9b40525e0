package jsonkeys

import (
	"encoding/json"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// config has every kind of field that a configuration may have.
type config struct {
	embedded
	*Pointed
	Queues   int                 `json:"queues"`
	Small    int8                `json:"small"`
	Big      uint64              `json:"big"`
	Owner    *uint32             `json:"owner"`
	Ratio    float32             `json:"ratio"`
	NAPI     bool                `json:"napi"`
	Name     string              `json:"name"`
	IPAM     inner               `json:"ipam"`
	More     []*inner            `json:"more"`
	ByName   map[string]inner    `json:"byName"`
	Any      any                 `json:"any"`
	Raw      json.RawMessage     `json:"raw"`
	Addr     netip.Addr          `json:"addr"`
	Bytes    []byte              `json:"bytes"`
	Three    [3]bool             `json:"three"`
	Number   json.Number         `json:"number"`
	Text     int                 `json:"text,string"`
	Hidden   string              `json:"-"`
	Untagged map[string][]string `json:",omitempty"`
	private  string              //nolint:unused // a key that must not be known
}

type embedded struct {
	CNIVersion string `json:"cniVersion"`
	Name       int    `json:"name"` // the outer one wins
}

// Pointed is exported so that encoding/json can set it.
type Pointed struct {
	DNS inner `json:"dns"`
}

type inner struct {
	Ranges [][]inner `json:"ranges"`
	Subnet string    `json:"subnet"`
}

func TestCheck(t *testing.T) {
	for name, c := range map[string]struct {
		data string
		want []string
	}{
		"empty": {`{}`, nil},
		"all right": {`{"cniVersion":"1","dns":{"subnet":"x"},"queues":-1,"small":127,"big":18446744073709551615,"owner":0,"ratio":1.5,"napi":true,
			"name":"é\n","ipam":{"ranges":[[{"subnet":"x"}],[]]},"more":[{},null],"byName":{"a b":{"subnet":"x"}},"any":{"x":[1]},"raw":{"y":2},
			"addr":"10.0.0.1","bytes":"AAEC","three":[true],"number":1e3,"text":"5","Untagged":{"a":["b"]}}`, nil},
		"null everywhere":      {`{"queues":null,"ipam":null,"more":null,"addr":null,"name":null}`, nil},
		"unknown, near":        {`{"qeues":1}`, []string{`unknown key "qeues"; did you mean "queues"?`}},
		"unknown, other case":  {`{"Queues":1}`, []string{`unknown key "Queues"; did you mean "queues"?`}},
		"unknown, in embedded": {`{"cniversion":"1"}`, []string{`unknown key "cniversion"; did you mean "cniVersion"?`}},
		"unknown, deep":        {`{"ipam":{"ranges":[[{}],[{},{"subnt":1}]]}}`, []string{`ipam.ranges[1][1]: unknown key "subnt"; did you mean "subnet"?`}},
		"unknown, far":         {`{"ipam":{"gateway":1}}`, []string{`ipam: unknown key "gateway"; known keys: ranges, subnet`}},
		"unknown, hidden":      {`{"Hidden":1}`, []string{`unknown key "Hidden"; known keys: Untagged, addr, any, big, byName, bytes, cniVersion, dns, ipam, more, name, napi, number, owner, queues, ratio, raw, small, text, three`}},
		"unknown, private":     {`{"private":1}`, []string{`unknown key "private"; known keys: Untagged, addr, any, big, byName, bytes, cniVersion, dns, ipam, more, name, napi, number, owner, queues, ratio, raw, small, text, three`}},
		"path of odd keys":     {`{"byName":{"a.b":{"x":1},"c":{"subnet":1}}}`, []string{`byName["a.b"]: unknown key "x"; known keys: ranges, subnet`, `byName.c.subnet: want a string, got number 1`}},
		"twice":                {`{"queues":1,"queues":1}`, []string{`key "queues" is given more than once`}},
		"every type at once": {`{"queues":"1","small":1.5,"owner":true,"ratio":"x","napi":1,"name":5,"ipam":[],"more":{},"addr":5,"bytes":"!","three":1}`, []string{
			`queues: want a whole number, got string "1"`, `small: want a whole number, got number 1.5`, `owner: want a whole number, got true`,
			`ratio: want a number, got string "x"`, `napi: want true or false, got number 1`, `name: want a string, got number 5`,
			`ipam: want an object, got an array`, `more: want an array, got an object`, `addr: want a string, got number 5`,
			`bytes: illegal base64 data at input byte 0`, `three: want an array, got number 1`}},
		"limits": {`{"small":128,"big":-1,"owner":4294967296,"queues":9223372036854775808,"ratio":1e99}`, []string{
			`small: want -128 to 127, got 128`, `big: want 0 to 18446744073709551615, got -1`, `owner: want 0 to 4294967295, got 4294967296`,
			`queues: want -9223372036854775808 to 9223372036854775807, got 9223372036854775808`, `ratio: want a number that fits 32 bits, got 1e99`}},
		"text of its own":  {`{"addr":"10.0.0"}`, []string{`addr: ParseAddr("10.0.0"): IPv4 address too short`}},
		"not an object":    {`[1]`, []string{`want an object, got an array`}},
		"long values":      {`{"queues":"` + strings.Repeat("x", 99) + `"}`, []string{`queues: want a whole number, got string "` + strings.Repeat("x", 40) + `…"`}},
		"inside a pointer": {`{"more":[{},{"subnet":{}}]}`, []string{`more[1].subnet: want a string, got an object`}},
	} {
		t.Run(name, func(t *testing.T) {
			faults, err := Check([]byte(c.data), &config{})
			if err != nil {
				t.Fatal(err)
			}
			var got []string
			for _, f := range faults {
				got = append(got, f.String())
			}
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("faults (-want +got):\n%s", diff)
			}
			agree(t, []byte(c.data), faults)
		})
	}
}

// agree checks the promise that what has no fault is decoded without an error.
func agree(t *testing.T, data []byte, faults Faults) {
	t.Helper()
	if err := json.Unmarshal(data, &config{}); err != nil && len(faults) == 0 {
		t.Errorf("no fault in %s, and encoding/json says: %v", data, err)
	}
}

func TestCheckSaysWhereTheSyntaxEnds(t *testing.T) {
	for data, part := range map[string]string{
		"":                       "unexpected end of JSON input",
		"{\n\"a\":1,\n}":         "line 3",
		`{"a":1} {"b":2}`:        "byte 9",
		"{\"a\":\"\x01\"}":       "byte 7",
		strings.Repeat("[", 1e5): "depth",
	} {
		if _, err := Check([]byte(data), config{}); err == nil || !strings.Contains(err.Error(), part) {
			t.Errorf("%.20q: want an error with %q, got %v", data, part, err)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"queues", "owner", "vmm", "mtu", "mac", "stateDir", "nonMasqueradeCIDRs", "ipMasq"}
	for key, want := range map[string]string{
		"queue": "queues", "qeueus": "queues", "state_dir": "stateDir", "STATEDIR": "stateDir", "vm": "vmm", "mask": "mac",
		"nonMasqueradeCidr": "nonMasqueradeCIDRs", "masquerade": "", "x": "", "": "", "completelyDifferent": "",
	} {
		if got := Nearest(key, known); got != want {
			t.Errorf("nearest to %q: want %q, got %q", key, want, got)
		}
	}
}

func TestDistance(t *testing.T) {
	for _, c := range []struct {
		a, b string
		want int
	}{{"", "", 0}, {"", "abc", 3}, {"abc", "", 3}, {"abc", "abc", 0}, {"abc", "acb", 1}, {"abc", "abd", 1}, {"abc", "bc", 1}, {"kitten", "sitting", 3}, {"é", "e", 1}} {
		if got := distance(c.a, c.b); got != c.want {
			t.Errorf("distance from %q to %q: want %d, got %d", c.a, c.b, c.want, got)
		}
	}
}

func TestFaultsUnder(t *testing.T) {
	got := Faults{{"", "a"}, {"x", "b"}, {"[0].y", "c"}}.Under("ipam")
	want := "ipam: a\nipam.x: b\nipam[0].y: c"
	if got.Error() != want {
		t.Errorf("want %q, got %q", want, got)
	}
	if (Faults{}).Err() != nil || got.Err() == nil {
		t.Errorf("Err: got %v of none and %v of some", (Faults{}).Err(), got.Err())
	}
}

func FuzzCheck(f *testing.F) {
	for _, seed := range []string{`{"queues":1,"ipam":{"ranges":[[{"subnet":"x"}]]}}`, `{"owner":null,"small":-129,"ratio":1e400,"text":"x"}`, `[[[]]]`, `{"any":{"a":1},"three":[1,2,3,4]}`, `{"dns":{},"bytes":[1,300]}`} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		faults, err := Check(data, config{})
		if valid := json.Valid(data); valid != (err == nil) {
			t.Fatalf("valid JSON: %v, error %v", valid, err)
		}
		if err == nil {
			agree(t, data, faults)
		}
	})
}
