package httpfile

import (
	"io"
	"net/http"
	"time"
)

// A Request describes a request answered by a server.
type Request struct {
	Operation      string // get, head, put, or other
	Status         int    // status code of HTTP
	Received, Sent int64  // body bytes of the request and of the answer
	Took           time.Duration
}

// Observe calls report for every request of h, after the answer.
func Observe(h http.Handler, report func(Request)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		q := Request{Operation: "other", Status: http.StatusOK}
		switch r.Method {
		case http.MethodGet:
			q.Operation = "get"
		case http.MethodHead:
			q.Operation = "head"
		case http.MethodPut:
			q.Operation = "put"
		}
		began := time.Now()
		defer func() { // a handler may panic to break the connection
			q.Took = time.Since(began)
			report(q)
		}()
		// The request is copied, because the original must keep its Body: from the type of the
		// Body, net/http recognizes a client waiting for "100 Continue", and answers without
		// reading any bytes.
		r = r.WithContext(r.Context())
		r.Body = &countedBody{r.Body, &q.Received}
		h.ServeHTTP(&countedWriter{w, &q}, r)
	})
}

type countedBody struct {
	io.ReadCloser
	n *int64
}

func (b *countedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	*b.n += int64(n)
	return n, err
}

// A countedWriter counts the bytes of an answer. Its ReadFrom lets net/http send a file uncopied.
type countedWriter struct {
	http.ResponseWriter
	q *Request
}

func (w *countedWriter) WriteHeader(code int) {
	if code >= 200 { // informational answers precede the real one
		w.q.Status = code
	}
	w.ResponseWriter.WriteHeader(code)
}

func (w *countedWriter) Write(b []byte) (int, error) {
	n, err := w.ResponseWriter.Write(b)
	w.q.Sent += int64(n)
	return n, err
}

func (w *countedWriter) ReadFrom(r io.Reader) (int64, error) {
	n, err := io.Copy(w.ResponseWriter, r)
	w.q.Sent += n
	return n, err
}

// Unwrap is for http.ResponseController.
func (w *countedWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
