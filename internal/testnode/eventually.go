package testnode

import (
	"testing"
	"time"
)

// Eventually asks until f gives nil, and fails the test with f's last error where it did not within patience.
func Eventually(t testing.TB, patience time.Duration, f func() error) {
	t.Helper()
	for until := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		err := f()
		if err == nil {
			return
		}
		if time.Now().After(until) {
			t.Fatalf("not after %s: %v", patience, err)
		}
	}
}
