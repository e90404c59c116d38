package main

import (
	"io"
	"net/http"
	"regexp"
	"testing"
)

var (
	metricsURL = regexp.MustCompile(`url=(http://\S+)`)
	moved      = regexp.MustCompile(`viaduct_payload_bytes_total\{[^}]*\} [1-9]`)
)

// moving waits until the metrics of a client with --metrics count moved bytes, or until the client
// has ended with success.
func moving(t *testing.T, p *proc) {
	t.Helper()
	p.waitStderr("url=http://")
	u := metricsURL.FindStringSubmatch(p.stderr())[1]
	eventually(t, "bytes on their way", func() bool {
		select {
		case <-p.done:
			if code := p.wait(); code != 0 {
				t.Fatalf("exit %d\n%s", code, p.stderr())
			}
			return true
		default:
		}
		r, err := http.Get(u)
		if err != nil {
			return false
		}
		defer r.Body.Close()
		b, err := io.ReadAll(r.Body)
		return err == nil && moved.Match(b)
	})
}
