// Package httpfile serves and fetches files over HTTP, for the byte-stream transports. Digests are
// in the fields of RFC 9530 (Repr-Digest), so that other HTTP programs can use both sides.
package httpfile

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"html"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"time"

	"viaduct/cmd/viaduct/internal/store"
)

// Digest header fields. [RFC 9530]
const (
	reprDigest = "Repr-Digest"
	wantDigest = "Want-Repr-Digest"
	// The digest of the bytes in one answer: a part of the file if the request has a Range.
	contentDigest = "Content-Digest"
	wantContent   = "Want-Content-Digest"
)

// fileType is the only type accepted by a client that wants a file, not a listing.
const fileType = "application/octet-stream"

func formatDigest(sum [32]byte) string {
	return "sha-256=:" + base64.StdEncoding.EncodeToString(sum[:]) + ":"
}

// parseDigest finds the SHA-256 in a digest field. ok is false if the field has none.
func parseDigest(s string) (sum [32]byte, ok bool) {
	for part := range strings.SplitSeq(s, ",") {
		v, found := strings.CutPrefix(strings.TrimSpace(part), "sha-256=:")
		if !found {
			continue
		}
		b, err := base64.StdEncoding.DecodeString(strings.TrimSuffix(v, ":"))
		if err == nil && len(b) == len(sum) {
			return [32]byte(b), true
		}
	}
	return sum, false
}

// NewHandler serves the files of s: GET and HEAD with ranges, listings of
// directories as HTML or JSON, and PUT if s is writable.
func NewHandler(s *store.Store, log *slog.Logger) http.Handler {
	h := &handler{s: s, log: log, sums: map[sumKey][32]byte{}}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Server", "viaduct")
		p := strings.TrimPrefix(r.URL.Path, "/")
		switch r.Method {
		case http.MethodGet, http.MethodHead:
			h.get(w, r, p)
		case http.MethodPut:
			h.put(w, r, p)
		default:
			w.Header().Set("Allow", "GET, HEAD, PUT")
			http.Error(w, "method not allowed", http.StatusMethodNotAllowed)
		}
	})
}

type handler struct {
	s   *store.Store
	log *slog.Logger

	mu   sync.Mutex
	sums map[sumKey][32]byte // guarded by mu; at most maxSums
}

// maxSums bounds the number of remembered digests.
const maxSums = 1024

// A sumKey identifies a version of a file, by name, size and time.
type sumKey struct {
	path  string
	size  int64
	mtime time.Time
}

func (h *handler) refuse(w http.ResponseWriter, r *http.Request, err error) {
	code := http.StatusBadRequest
	switch {
	case errors.Is(err, store.ErrNotFound):
		code = http.StatusNotFound
	case errors.Is(err, store.ErrReadOnly), errors.Is(err, store.ErrNotFile), errors.Is(err, store.ErrDenied):
		code = http.StatusForbidden
	case errors.Is(err, store.ErrTooLarge):
		code = http.StatusRequestEntityTooLarge
	case errors.Is(err, store.ErrNoSpace):
		code = http.StatusInsufficientStorage
	}
	h.log.Info("request refused", "method", r.Method, "path", r.URL.Path, "err", err)
	http.Error(w, err.Error(), code)
}

func (h *handler) get(w http.ResponseWriter, r *http.Request, p string) {
	f, st, err := h.s.OpenFile(p)
	if errors.Is(err, store.ErrIsDir) {
		h.list(w, r, p)
		return
	}
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	defer f.Close()
	w.Header().Set("ETag", fmt.Sprintf(`"%x-%x"`, st.ModTime().UnixNano(), st.Size()))
	if w.Header().Get("Content-Type") == "" {
		w.Header().Set("Content-Type", "application/octet-stream")
	}
	if r.Header.Get(wantDigest) != "" {
		sum, err := h.sum(sumKey{p, st.Size(), st.ModTime()}, f)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		w.Header().Set(reprDigest, formatDigest(sum))
	}
	if n, ok := prefixWanted(r); ok && n <= st.Size() {
		sum, err := h.sum(sumKey{p, n, st.ModTime()}, f)
		if err != nil {
			h.refuse(w, r, err)
			return
		}
		w.Header().Set(contentDigest, formatDigest(sum))
	}
	h.log.Info("served", "method", r.Method, "path", p, "bytes", st.Size())
	http.ServeContent(w, r, "", st.ModTime(), f)
}

// prefixWanted returns the length of the prefix whose digest a request asks for. ok is false for a
// range beginning after the first byte, because only prefixes are hashed.
func prefixWanted(r *http.Request) (n int64, ok bool) {
	last, found := strings.CutPrefix(r.Header.Get("Range"), "bytes=0-")
	if r.Method != http.MethodHead || r.Header.Get(wantContent) == "" || !found {
		return 0, false
	}
	n, err := strconv.ParseInt(last, 10, 64)
	return n + 1, err == nil && n >= 0 && n < math.MaxInt64
}

// sum returns the SHA-256 of the first k.size bytes of a file. It hashes each version of the file
// once.
func (h *handler) sum(k sumKey, f io.ReadSeeker) ([32]byte, error) {
	h.mu.Lock()
	sum, ok := h.sums[k]
	h.mu.Unlock()
	if ok {
		return sum, nil
	}
	hash := sha256.New()
	n, err := io.Copy(hash, io.LimitReader(f, k.size))
	if err == nil && n != k.size {
		err = errors.New("the file changed while it was being read")
	}
	if err == nil {
		_, err = f.Seek(0, io.SeekStart)
	}
	if err != nil {
		return sum, err
	}
	sum = [32]byte(hash.Sum(nil))
	h.mu.Lock()
	defer h.mu.Unlock()
	if len(h.sums) >= maxSums {
		clear(h.sums)
	}
	h.sums[k] = sum
	return sum, nil
}

// acceptsText reports whether an Accept field allows a listing as text.
func acceptsText(accept string) bool {
	if accept == "" {
		return true
	}
	for part := range strings.SplitSeq(accept, ",") {
		kind, _, _ := strings.Cut(strings.TrimSpace(part), ";")
		switch strings.ToLower(strings.TrimSpace(kind)) {
		case "text/html", "text/*", "*/*", "application/xhtml+xml":
			return true
		}
	}
	return false
}

func (h *handler) list(w http.ResponseWriter, r *http.Request, p string) {
	es, err := h.s.List(p)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	if strings.Contains(r.Header.Get("Accept"), "application/json") {
		w.Header().Set("Content-Type", "application/json")
		json.NewEncoder(w).Encode(map[string]any{"entries": es})
		return
	}
	if !acceptsText(r.Header.Get("Accept")) {
		h.refuse(w, r, store.ErrIsDir)
		return
	}
	if p != "" && !strings.HasSuffix(p, "/") {
		http.Redirect(w, r, (&url.URL{Path: "/" + p + "/"}).String(), http.StatusMovedPermanently)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	io.WriteString(w, "<!doctype html>\n<pre>\n")
	for _, e := range es {
		n := string(e.Name)
		switch {
		case e.Dir:
			n += "/"
		case e.Other:
			fmt.Fprintf(w, "%s\n", html.EscapeString(n))
			continue
		}
		fmt.Fprintf(w, "<a href=\"%s\">%s</a>\n", (&url.URL{Path: "./" + n}).String(), html.EscapeString(n))
	}
	io.WriteString(w, "</pre>\n")
}

// restTime bounds how long the unread bytes of a refused body are read.
const restTime = 5 * time.Second

// refuseRest refuses a request in the middle of the body, then reads and discards the remaining
// bytes for restTime. Otherwise the kernel would reset the connection, because there are unread
// bytes, and the reset might reach the client before the answer.
func (h *handler) refuseRest(w http.ResponseWriter, r *http.Request, err error) {
	c := http.NewResponseController(w)
	full := c.EnableFullDuplex()
	h.refuse(w, r, err)
	if full == nil && c.Flush() == nil && c.SetReadDeadline(time.Now().Add(restTime)) == nil {
		io.Copy(io.Discard, r.Body)
	}
}

func (h *handler) put(w http.ResponseWriter, r *http.Request, p string) {
	u, err := h.s.Create(p, -1)
	if err != nil {
		h.refuse(w, r, err)
		return
	}
	defer u.Abort()
	want, given := parseDigest(r.Header.Get(reprDigest))
	hash := sha256.New()
	n, err := io.CopyBuffer(io.MultiWriter(hash, u), r.Body, make([]byte, 256<<10))
	if err != nil {
		h.refuseRest(w, r, err)
		return
	}
	if !given { // the body had no length in advance
		want, given = parseDigest(r.Trailer.Get(reprDigest))
	}
	sum := [32]byte(hash.Sum(nil))
	if given && sum != want {
		h.refuse(w, r, fmt.Errorf("%w: stored bytes have %x", store.ErrSum, sum))
		return
	}
	if err := u.Commit(); err != nil {
		h.refuse(w, r, err)
		return
	}
	h.log.Info("stored", "path", p, "bytes", n)
	w.Header().Set(reprDigest, formatDigest(sum))
	w.WriteHeader(http.StatusCreated)
}
