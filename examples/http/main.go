// Command http serves HTTP over SDP and fetches a page from itself.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"

	"viaduct/sdp"
)

type pathKey struct{}

func main() {
	// This is the server. net/http uses the listener like a TCP listener.
	l := must(sdp.Listen("127.0.0.1:0", nil))
	server := &http.Server{
		Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			path := r.Context().Value(pathKey{}).(sdp.Path)
			fmt.Fprintf(w, "hello, sdp=%v accepted=%v", path.SDP, path.Accepted)
		}),
		// The connection is an *sdp.Conn. Each request gets the connection's Path in the context.
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, pathKey{}, c.(*sdp.Conn).Path())
		},
	}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()

	// This is the client. It uses an sdp.Dialer instead of a net.Dialer.
	dialer := &sdp.Dialer{}
	client := &http.Client{Transport: &http.Transport{DialContext: dialer.DialContext}}
	answer := must(client.Get("http://" + l.Addr().String() + "/"))
	body := must(io.ReadAll(answer.Body))
	answer.Body.Close()
	fmt.Printf("%s: %s\n", answer.Status, body)

	client.CloseIdleConnections()
	if err := server.Shutdown(context.Background()); err != nil {
		log.Fatal(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		log.Fatal(err)
	}
}

func must[T any](v T, err error) T {
	check(err)
	return v
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
