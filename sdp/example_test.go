package sdp_test

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

// A Listener is a net.Listener and a Conn a net.Conn, so a program only replaces its calls of
// net.Listen and net.Dial.
func Example() {
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		defer c.Close()
		io.Copy(c, c)
	}()

	c, err := sdp.Dial(l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	io.WriteString(c, "hello, sdp")
	c.CloseWrite() // written bytes are delivered, then the peer reads io.EOF
	echo, err := io.ReadAll(c)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(string(echo))
	// Output: hello, sdp
}

// HTTP works over SDP without other changes.
func ExampleDialer_DialContext() {
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprint(w, "hello, ", r.URL.Path)
	})}
	served := make(chan error)
	go func() { served <- server.Serve(l) }()

	d := &sdp.Dialer{}
	client := &http.Client{Transport: &http.Transport{DialContext: d.DialContext}}
	r, err := client.Get("http://" + l.Addr().String() + "/page")
	if err != nil {
		log.Fatal(err)
	}
	body, err := io.ReadAll(r.Body)
	if err != nil {
		log.Fatal(err)
	}
	r.Body.Close()
	fmt.Printf("%s %s\n", r.Status, body)

	client.CloseIdleConnections()
	server.Shutdown(context.Background())
	<-served
	// Output: 200 OK hello, /page
}

// A single port accepts SDP and plain TCP, for clients that send first.
func ExampleListenConfig_Listen() {
	lc := sdp.ListenConfig{Plain: true}
	l, err := lc.Listen(context.Background(), "tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	dialers := []func(address string) (net.Conn, error){
		func(a string) (net.Conn, error) { return sdp.Dial(a, nil) },
		func(a string) (net.Conn, error) { return net.Dial("tcp", a) },
	}
	for _, dial := range dialers {
		c, err := dial(l.Addr().String())
		if err != nil {
			log.Fatal(err)
		}
		io.WriteString(c, "hello")
		s, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		path := s.(interface{ Path() sdp.Path }).Path() // *sdp.Conn or *sdp.TCPConn
		fmt.Println("over SDP:", path.SDP)
		c.Close()
		s.Close()
	}
	// Output:
	// over SDP: true
	// over SDP: false
}

// Two writes are under way at a time, so the peer may fetch both at once. The memory is lent until
// Wait.
func ExampleConn_StartWrite() {
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	total := make(chan int)
	go func() {
		s, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		b, err := io.ReadAll(s)
		if err != nil {
			log.Fatal(err)
		}
		s.Close()
		total <- len(b)
	}()

	c, err := sdp.Dial(l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	var under []*sdp.Transfer
	for range 2 {
		t, err := c.StartWrite(make([]byte, 2<<20))
		if err != nil {
			log.Fatal(err)
		}
		under = append(under, t)
	}
	for _, t := range under {
		n, err := t.Wait(context.Background())
		fmt.Println(n, err)
	}
	if err := c.Close(); err != nil {
		log.Fatal(err)
	}
	fmt.Println(<-total, "bytes arrived")
	// Output:
	// 2097152 <nil>
	// 2097152 <nil>
	// 4194304 bytes arrived
}

// After Close of a listener, Accept returns net.ErrClosed like any net.Listener.
func ExampleListener_Close() {
	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	l.Close()
	_, err = l.Accept()
	fmt.Println(errors.Is(err, net.ErrClosed))
	// Output: true
}
