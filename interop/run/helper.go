//go:build linux && (amd64 || arm64)

package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// helper is the main function of a static Go program that does not use viaduct.
func helper(what string, args []string) error {
	switch what {
	case "http": // [ADDRESS:]PORT DIR
		at := args[0]
		if !strings.Contains(at, ":") {
			at = "127.0.0.1:" + at
		}
		files := http.FileServer(http.Dir(args[1]))
		return http.ListenAndServe(at, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Println(r.RemoteAddr)
			files.ServeHTTP(w, r)
		}))
	case "get": // URL FILE
		return get(args[0], args[1])
	case "accept": // PORT: accepts connections, and measures how long an accept of a waiting connection takes
		return acceptCost(args[0])
	case "calls": // PORT: measures the cost of calls
		return callCosts(args[0])
	}
	return fmt.Errorf("unknown: %s", what)
}

// get writes the resource at a URL to a file, and prints the peer's address.
func get(url, file string) error {
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { fmt.Println("peer", i.Conn.RemoteAddr()) }}
	req, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "GET", url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	f, err := os.Create(file)
	if err != nil {
		return err
	}
	if _, err := io.Copy(f, resp.Body); err != nil {
		return err
	}
	return f.Close()
}

// acceptCost accepts connections at port. A connection sending a byte gets the least and the median
// time of the accepts so far, and acceptCost then forgets the times.
func acceptCost(port string) error {
	l, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
	if err != nil {
		return err
	}
	n, _ := strconv.Atoi(port)
	unix.SetsockoptInt(l, unix.SOL_SOCKET, unix.SO_REUSEADDR, 1)
	if err := unix.Bind(l, &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return err
	}
	if err := unix.Listen(l, 1024); err != nil {
		return err
	}
	var took []time.Duration
	for {
		unix.Poll([]unix.PollFd{{Fd: int32(l), Events: unix.POLLIN}}, -1)
		begin := time.Now()
		c, _, err := unix.Accept4(l, 0)
		if err != nil {
			return err
		}
		took = append(took, time.Since(begin))
		var b [1]byte
		if n, _ := unix.Read(c, b[:]); n == 1 {
			slices.Sort(took)
			unix.Write(c, fmt.Appendf(nil, "accept %d %d", took[0].Nanoseconds(), took[len(took)/2].Nanoseconds()))
			took = nil
		}
		unix.Close(c)
	}
}

// callCosts prints the least and the median time of calls, in nanoseconds.
func callCosts(port string) error {
	n, _ := strconv.Atoi(port)
	to := &unix.SockaddrInet4{Port: n, Addr: [4]byte{127, 0, 0, 1}}
	var took []time.Duration
	for range 1500 {
		c, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, 0)
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := unix.Connect(c, to); err != nil {
			return err
		}
		took = append(took, time.Since(begin))
		unix.Close(c)
	}
	slices.Sort(took)
	fmt.Println("connect", took[0].Nanoseconds(), took[len(took)/2].Nanoseconds())
	c, err := net.Dial("tcp", "127.0.0.1:"+port)
	if err != nil {
		return err
	}
	c.Write([]byte{1})
	b, err := io.ReadAll(c)
	if err != nil {
		return err
	}
	fmt.Println(string(b))
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_DGRAM, 0)
	if err != nil {
		return err
	}
	one := []byte{1}
	batch := func(name string, f func()) {
		took = took[:0]
		for range 300 {
			begin := time.Now()
			for range 200 {
				f()
			}
			took = append(took, time.Since(begin)/200)
		}
		slices.Sort(took)
		fmt.Println(name, took[0].Nanoseconds(), took[len(took)/2].Nanoseconds())
	}
	batch("getppid", func() { unix.RawSyscall(unix.SYS_GETPPID, 0, 0, 0) })
	batch("sendto+recvfrom", func() {
		unix.Sendto(pair[0], one, 0, nil)
		unix.Recvfrom(pair[1], one, 0)
	})
	return nil
}
