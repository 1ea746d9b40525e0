package metrics

import (
	"compress/gzip"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

func TestCompressionIsWhatTheScraperTakes(t *testing.T) {
	text := strings.Repeat("series 1\n", 1000)
	h := gzipped(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "9000")
		w.WriteHeader(http.StatusOK)
		_, _ = io.WriteString(w, text) // to a recorder
	}))
	for accept, want := range map[string]bool{
		"": false, "gzip": true, "deflate, gzip;q=0.5": true, "GZIP ; q=1": true, "gzip;q=0": false, "gzip;q=0.0, deflate": false, "br": false, "gzip;q=x": false,
	} {
		r := httptest.NewRequest("GET", "/metrics", nil)
		r.Header.Set("Accept-Encoding", accept)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		var body io.Reader = w.Body
		if got := w.Header().Get("Content-Encoding") == "gzip"; got != want {
			t.Errorf("%q: want gzip: %t, got %t", accept, want, got)
		} else if got {
			if w.Header().Get("Content-Length") != "" || w.Body.Len() > len(text)/10 {
				t.Errorf("%q: want it short and without a length, got %d, %v", accept, w.Body.Len(), w.Header())
			}
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		if data, err := io.ReadAll(body); err != nil || string(data) != text {
			t.Errorf("%q: want the text, got %d bytes, %v", accept, len(data), err)
		}
	}
}
