// Roce writes into the memory of another host by RoCEv2, and reads the bytes back, from an ordinary
// UDP socket:
//
//	roce 192.0.2.1                    # lends memory, at this address
//	roce 192.0.2.2 192.0.2.1:7175     # writes there and reads back
//
// The two sides exchange their addresses by a line over TCP, as programs that use verbs do.
package main

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"log"
	"net"
	"net/netip"
	"os"

	"viaduct/roce"
)

func main() {
	if len(os.Args) < 2 {
		log.Fatal("usage: roce LOCAL-ADDRESS [HOST:PORT]")
	}
	dev, err := roce.Open(netip.MustParseAddr(os.Args[1]))
	check(err)
	defer dev.Close()
	qp, err := dev.NewQueuePair(roce.Config{})
	check(err)
	mr, err := qp.PD().Register(make([]byte, 1<<20), roce.RemoteRead|roce.RemoteWrite)
	check(err)
	if len(os.Args) == 2 {
		l, err := net.Listen("tcp", net.JoinHostPort(os.Args[1], "7175"))
		check(err)
		fmt.Println("listening")
		c, err := l.Accept()
		check(err)
		meet(c, qp, mr)
		check(qp.PostRecv(roce.RecvWR{}))
		fmt.Fprintln(c, "ready")
		_, err = qp.RecvCQ().Wait(context.Background()) // all bytes written before that message are visible then
		check(err)
		fmt.Printf("%q was written\n", bytes.TrimRight(mr.Bytes(), "\x00"))
		return
	}
	c, err := net.Dial("tcp", os.Args[2])
	check(err)
	r, far := meet(c, qp, mr)
	_, err = r.ReadString('\n')
	check(err)
	message, back := []byte("hello from Go"), make([]byte, 13)
	check(qp.Post(
		roce.SendWR{Op: roce.OpWrite, SG: []roce.SGE{roce.Buf(message)}, Remote: far, Unsignaled: true},
		roce.SendWR{Op: roce.OpRead, SG: []roce.SGE{roce.Buf(back)}, Remote: far, Unsignaled: true},
		roce.SendWR{Op: roce.OpSend})) // informs the other side that the bytes are written
	done, err := qp.SendCQ().Wait(context.Background()) // fails if the peer does not answer
	check(err)
	check(done.Err())
	fmt.Printf("wrote and read back %q\n", back)
}

// meet connects qp with the other side's queue pair, and returns the address of the lent memory.
func meet(c net.Conn, qp *roce.QueuePair, mr *roce.MemoryRegion) (r *bufio.Reader, far roce.RemoteAddr) {
	own, peer, addr := qp.Local(), roce.Endpoint{}, ""
	fmt.Fprintln(c, own.Addr, own.QPN, own.PSN, mr.Key(), mr.Addr())
	r = bufio.NewReader(c)
	_, err := fmt.Fscanln(r, &addr, &peer.QPN, &peer.PSN, &far.Key, &far.Addr)
	check(err)
	peer.Addr = netip.MustParseAddr(addr)
	check(qp.Connect(peer))
	return r, far
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
