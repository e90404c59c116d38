package debug_test

import (
	"fmt"
	"io"
	"log"
	"os"

	"viaduct/debug"
	"viaduct/sdp"
)

// The example shows the connections of a program to "viaduct ps".
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
	b := make([]byte, 5)
	if _, err := io.ReadFull(c, b); err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", b)
	// Output: hello
}
