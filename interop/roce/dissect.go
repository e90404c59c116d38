package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// dissect checks the capture with tshark. The capture must contain at least the given number of
// packets, and no malformed packet. toGuest is the number of packets to the guest. Without tshark the
// check is skipped, and toGuest is -1.
func dissect(ctx context.Context, file string, packets int) (toGuest int, err error) {
	if err := need("tshark"); err != nil {
		fmt.Printf("*** SKIPPED: the capture was not read: %v ***\n", err)
		return -1, nil
	}
	// The messages are random bytes. tshark must not decode them as NFS over RDMA or as Ethernet
	// frames. An ICMP error quotes a packet sent to a program that has ended.
	const notNFS, notFrames = "rpcordma", "infiniband.identify_payload:FALSE"
	out, err := command(ctx, "", "tshark", "-r", file, "--disable-protocol", notNFS, "-o", notFrames, "-Y", "infiniband && !icmp && !icmpv6",
		"-T", "fields", "-E", "separator=/s", "-E", "occurrence=f", "-e", "ip.dst", "-e", "ipv6.dst", "-e", "_ws.malformed")
	if err != nil {
		return -1, err
	}
	all, bad := 0, 0
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		all++
		if slices.Contains(words, theirs.String()) || slices.Contains(words, theirs6.String()) {
			toGuest++
		}
		if len(words) > 1 {
			bad++
		}
	}
	fmt.Printf("tshark: %d packets, %d to the guest, %d malformed\n", all, toGuest, bad)
	if all < packets || bad > 0 {
		return -1, fmt.Errorf("%d packets, of which %d are malformed; %d were to be there", all, bad, packets)
	}
	return toGuest, nil
}
