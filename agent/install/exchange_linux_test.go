package install

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The owner writes in the very moment between a look and its exchange, and then once more: what they wrote last is what stays, for the next look.
func TestTheOwnersLastWordStays(t *testing.T) {
	path := filepath.Join(t.TempDir(), "05-others.conflist")
	list := func(mtu string) []byte {
		return []byte(`{"cniVersion": "1.0.0", "name": "others", "plugins": [{"type": "bridge", "mtu": ` + mtu + `}]}`)
	}
	write := func(data []byte) {
		t.Helper()
		if err := os.WriteFile(path, data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want := func(data []byte) {
		t.Helper()
		if got, err := os.ReadFile(path); err != nil || string(got) != string(data) {
			t.Errorf("want what the owner wrote, %s, got %s, %v", data, got, err)
		}
	}
	i := New(Config{Options: Options{From: "/nowhere", Mode: ModeChained}})
	extended, err := extend(list("1"), []byte(`{"name": "tapir", "plugins": [{"type": "tapir"}]}`), nil)
	if err != nil {
		t.Fatal(err)
	}
	seen := target{path: path, mode: 0o600, list: extended, before: list("1"), without: list("1")}
	write(list("2"))
	if _, err := i.put(seen); !errors.Is(err, errRewritten) {
		t.Errorf("want %v, got %v", errRewritten, err)
	}
	want(list("2"))

	write(list("3"))
	newer, now, err := again(seen, list("1"), list("2"))
	if err != nil || string(newer) != string(list("3")) || string(now) != string(list("2")) {
		t.Errorf("want what they wrote last in hand, got %s and %s, %v", newer, now, err)
	}
	if newer, _, err = again(seen, now, newer); err != nil || newer != nil {
		t.Errorf("want nothing newer, got %s, %v", newer, err)
	}
	want(list("3"))
}
