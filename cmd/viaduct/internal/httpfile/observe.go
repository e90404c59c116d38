package httpfile

import (
	"io"
	"net/http"
	"time"
)

// A Request is what a server has done for a client.
type Request struct {
	Operation      string // get, head, put, or other
	Status         int    // of HTTP
	Received, Sent int64  // bytes of the two bodies
	Took           time.Duration
}

// Observe calls tell for every request of h after it was answered.
func Observe(h http.Handler, tell func(Request)) http.Handler {
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
			tell(q)
		}()
		// The server's own request must keep its Body: by its type the server knows that a client
		// waits for "100 Continue", and answers without reading the bytes.
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

// A countedWriter keeps the methods by which net/http sends a file without copying it.
type countedWriter struct {
	http.ResponseWriter
	q *Request
}

func (w *countedWriter) WriteHeader(code int) {
	if code >= 200 { // others go before the answer
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
