package debug_test

import (
	"context"
	"fmt"
	"io"
	"log"
	"os"

	"viaduct/debug"
	"viaduct/sdp"
)

// A program shows its connections, and looks at itself as "viaduct ps" does.
func Example() {
	// Without Dir the socket is in the user's run directory, where viaduct ps looks.
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		log.Fatal(err)
	}
	defer os.RemoveAll(dir)
	s, err := debug.Listen(debug.Config{Program: "replicator", Dir: dir})
	if err != nil {
		log.Fatal(err)
	}
	defer s.Close()

	l, err := sdp.Listen("127.0.0.1:0", nil)
	if err != nil {
		log.Fatal(err)
	}
	defer l.Close()
	over := s.Listening("sdp", "sdp://"+l.Addr().String())
	defer over()
	go func() {
		c, err := l.Accept()
		if err != nil {
			log.Fatal(err)
		}
		io.Copy(c, c)
		c.Close()
	}()
	c, err := sdp.Dial(l.Addr().String(), nil)
	if err != nil {
		log.Fatal(err)
	}
	defer c.Close()
	s.WatchConn(c)
	io.WriteString(c, "hello")
	if _, err := io.ReadFull(c, make([]byte, 5)); err != nil {
		log.Fatal(err)
	}

	ps, err := debug.List(context.Background(), dir, false)
	if err != nil {
		log.Fatal(err)
	}
	for _, p := range ps {
		fmt.Printf("%s listens at %d address\n", p.Program, len(p.Listeners))
		for _, c := range p.Conns {
			fmt.Printf("%s %s: sent %d, received %d bytes\n", c.Transport, c.Role, c.SentBytes, c.ReceivedBytes)
		}
	}
	// Output:
	// replicator listens at 1 address
	// sdp dial: sent 5, received 5 bytes
}
