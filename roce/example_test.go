package roce_test

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/netip"
	"time"

	"viaduct/roce"
)

// Two queue pairs of a device write into each other's memory. Between two hosts, each side opens
// its own device, and the sides exchange Local, Key and Addr, for example over TCP.
func Example() {
	// Any address of this host will do. Addresses in 127.0.0.0/8 can be reached from this host
	// only.
	at := netip.AddrFrom4([4]byte{127, byte(1 + rand.IntN(250)), byte(rand.IntN(256)), byte(1 + rand.IntN(250))})
	dev, err := roce.Open(at)
	check(err)
	defer dev.Close()
	near, err := dev.NewQueuePair(roce.Config{})
	check(err)
	far, err := dev.NewQueuePair(roce.Config{})
	check(err)
	mr, err := far.PD().Register(make([]byte, 13), roce.RemoteWrite)
	check(err)
	check(near.Connect(far.Local()))
	check(far.Connect(near.Local()))

	check(near.Post(roce.SendWR{
		Op:     roce.OpWrite,
		SG:     []roce.SGE{roce.Buf([]byte("hello, memory"))},
		Remote: roce.RemoteAddr{Key: mr.Key(), Addr: mr.Addr()},
	}))
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	done, err := near.SendCQ().Wait(ctx)
	check(err)
	check(done.Err())
	fmt.Printf("%s\n", mr.Bytes())
	// Output: hello, memory
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
