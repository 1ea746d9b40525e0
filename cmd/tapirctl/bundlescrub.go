package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"strings"
)

// scrubber takes secrets out of text, and with redact what tells one node's addresses.
type scrubber struct {
	tokens []string
	redact bool
	names  map[string]string
}

// newScrubber knows the tokens that are in the state folders now (docs/tapird.md).
func newScrubber(stateDirs []string, redact bool) (*scrubber, error) {
	s := &scrubber{redact: redact, names: map[string]string{}}
	for _, dir := range stateDirs {
		err := filepath.WalkDir(filepath.Join(dir, "tokens"), func(path string, d fs.DirEntry, err error) error {
			if err != nil || d.IsDir() {
				return err
			}
			data, err := os.ReadFile(path)
			if token := strings.TrimSpace(string(data)); err == nil && len(token) >= 8 {
				s.tokens = append(s.tokens, token)
			}
			return err
		})
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, fmt.Errorf("learn which tokens to leave out: %w", err)
		}
	}
	return s, nil
}

var (
	// secret is a value that is named as one: of a JSON key, a flag, a variable or a header. Tokens of attachments that are gone are among these.
	secret   = regexp.MustCompile(`(?i)("?[\w.-]*(?:token|password|passwd|secret|api[_-]?key)"?\s*[:=]\s*"?)([^"\s,;}]{6,})`)
	bearer   = regexp.MustCompile(`(?i)(bearer\s+)[\w.~+/=-]{6,}`)
	macText  = regexp.MustCompile(`\b(?:[0-9a-fA-F]{2}:){5}[0-9a-fA-F]{2}\b`)
	addrText = regexp.MustCompile(`(?:[0-9a-fA-F]{0,4}:){2,7}[0-9a-fA-F.]*|\b\d{1,3}(?:\.\d{1,3}){3}\b`)
)

func (s *scrubber) clean(text string) string {
	for _, t := range s.tokens {
		text = strings.ReplaceAll(text, t, "(token)")
	}
	text = secret.ReplaceAllString(text, "${1}(secret)")
	text = bearer.ReplaceAllString(text, "${1}(secret)")
	if !s.redact {
		return text
	}
	text = macText.ReplaceAllStringFunc(text, func(m string) string { return s.name("mac", strings.ToLower(m)) })
	return addrText.ReplaceAllStringFunc(text, func(m string) string {
		a, err := netip.ParseAddr(m)
		if err != nil || a.IsLoopback() || a.IsUnspecified() {
			return m
		}
		return s.name("ip", a.String())
	})
}

// name is the same for the same thing in the whole bundle.
func (s *scrubber) name(kind, of string) string {
	key := kind + " " + of
	if s.names[key] == "" {
		s.names[key] = fmt.Sprintf("%s-%d", kind, len(s.names)+1)
	}
	return s.names[key]
}
