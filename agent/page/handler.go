package page

import (
	"crypto/sha256"
	_ "embed" // of the page
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"regexp"
	"strings"
)

// The page: one file with its own style and script, which asks nobody but tapird.
//
//go:embed page.html
var html []byte

// policy allows the page's own style and script, by their hashes, and requests to where it came from; nothing else.
var policy = fmt.Sprintf("default-src 'none'; style-src %s; script-src %s; connect-src 'self'; img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
	hashOf("style"), hashOf("script"))

// hashOf is the CSP source of the page's one element of that name.
func hashOf(element string) string {
	m := regexp.MustCompile(`(?s)<`+element+`>(.*?)</`+element+`>`).FindAllSubmatch(html, -1)
	if len(m) != 1 {
		panic(fmt.Sprintf("page.html: want one <%s>, got %d", element, len(m)))
	}
	sum := sha256.Sum256(m[0][1])
	return "'sha256-" + base64.StdEncoding.EncodeToString(sum[:]) + "'"
}

// maxRequests is how many requests of the API are answered at once; the others are told to come again.
const maxRequests = 32

// Handler answers requests. What it gives is the node's alone to read: a request must come by a name that no foreign DNS can point at the node.
func (p *Page) Handler() http.Handler {
	api := http.NewServeMux()
	api.HandleFunc("/api/v1/{$}", p.index)
	api.HandleFunc("/api/v1/node", p.nodeStatus)
	api.HandleFunc("/api/v1/attachments", p.attachments)
	api.HandleFunc("/api/v1/attachments/{network}/{containerID}/{ifName}", p.attachment)
	api.HandleFunc("/api/v1/decisions", p.decisions)
	api.HandleFunc("/api/", func(w http.ResponseWriter, r *http.Request) {
		answerError(w, http.StatusNotFound, fmt.Errorf("no resource %q; GET /api/v1/ lists them", r.URL.Path))
	})
	mux := http.NewServeMux()
	mux.Handle("/api/", limit(maxRequests, api))
	mux.HandleFunc("/{$}", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/html; charset=utf-8")
		_, _ = w.Write(html) // who asked may be gone
	})
	return guard(mux)
}

// guard refuses what could change something, and whoever was sent here by a name that is not the node's, and sets the headers of every answer.
func guard(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", policy)
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cross-Origin-Resource-Policy", "same-origin")
		h.Set("Cross-Origin-Opener-Policy", "same-origin")
		h.Set("Cache-Control", "no-store")
		switch {
		case !ownHost(r.Host):
			answerError(w, http.StatusMisdirectedRequest, fmt.Errorf("host %q: want an IP address or \"localhost\"", r.Host))
		case r.Method != http.MethodGet && r.Method != http.MethodHead:
			h.Set("Allow", "GET, HEAD")
			answerError(w, http.StatusMethodNotAllowed, fmt.Errorf("method %q: want GET or HEAD", r.Method))
		default:
			next.ServeHTTP(w, r)
		}
	})
}

// ownHost tells whether a request's Host is a name that no foreign DNS can give: an address, or "localhost" (RFC 6761). A page of another site whose
// name is made to lead here (DNS rebinding) would be of the same origin in the browser's eyes.
func ownHost(host string) bool {
	name := host
	if h, _, err := net.SplitHostPort(host); err == nil {
		name = h
	}
	name = strings.TrimSuffix(strings.TrimPrefix(name, "["), "]")
	if strings.EqualFold(name, "localhost") {
		return true
	}
	_, err := netip.ParseAddr(name)
	return err == nil
}

// limit bounds what is answered at once.
func limit(n int, next http.Handler) http.Handler {
	slots := make(chan struct{}, n)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		select {
		case slots <- struct{}{}:
			defer func() { <-slots }()
			next.ServeHTTP(w, r)
		default:
			w.Header().Set("Retry-After", "1")
			answerError(w, http.StatusServiceUnavailable, fmt.Errorf("%d requests are being answered; ask again", n))
		}
	})
}

// answer writes JSON.
func answer(w http.ResponseWriter, v any) {
	data, err := json.Marshal(v)
	if err != nil {
		answerError(w, http.StatusInternalServerError, err)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_, _ = w.Write(append(data, '\n')) // who asked may be gone
}

// answerError writes an error as JSON.
func answerError(w http.ResponseWriter, status int, err error) {
	data, marshalErr := json.Marshal(map[string]string{"error": err.Error()})
	if marshalErr != nil {
		data, status = []byte(`{}`), http.StatusInternalServerError
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(append(data, '\n')) // who asked may be gone
}

// errNoSample is what who asks hears while there is none.
var errNoSample = errors.New("no sample of the node yet; ask again")
