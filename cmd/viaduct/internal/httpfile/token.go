package httpfile

import (
	"errors"
	"log/slog"
	"net/http"

	"viaduct/cmd/viaduct/internal/token"
)

// RequireToken passes to h only requests presenting the token [RFC 6750 2.1], or all requests if t
// is nil. RequireToken answers other requests with 401, logs the refusal, calls refused with
// token.ErrMissing or token.ErrWrong, and closes the connection.
func RequireToken(h http.Handler, t *token.Token, log *slog.Logger, refused func(error)) http.Handler {
	if t == nil {
		return h
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		err := t.Check(r.Header.Get("Authorization"))
		if err == nil {
			h.ServeHTTP(w, r)
			return
		}
		log.Warn("request refused", "method", r.Method, "path", r.URL.Path, "remote", r.RemoteAddr, "err", err)
		refused(err)
		challenge := `Bearer realm="viaduct"`
		if errors.Is(err, token.ErrWrong) {
			challenge += `, error="invalid_token"`
		}
		w.Header().Set("WWW-Authenticate", challenge)
		w.Header().Set("Connection", "close")
		http.Error(w, err.Error(), http.StatusUnauthorized)
	})
}
