package main

import (
	"bytes"
	"context"
	"fmt"
)

// dissect checks the capture with tshark. The capture must contain at least the given number of
// packets, and no malformed packet. Without tshark the check is skipped.
func dissect(ctx context.Context, file string, packets int) error {
	if err := need("tshark"); err != nil {
		fmt.Printf("*** SKIPPED: the capture was not read: %v ***\n", err)
		return nil
	}
	// The messages are random bytes. tshark must not decode them as NFS over RDMA or as Ethernet
	// frames.
	const notNFS, notFrames = "rpcordma", "infiniband.identify_payload:FALSE"
	count := func(filter string) (int, error) {
		out, err := command(ctx, "", "tshark", "-r", file, "--disable-protocol", notNFS, "-o", notFrames, "-Y", filter, "-T", "fields", "-e", "frame.number")
		return bytes.Count(out, []byte("\n")), err
	}
	all, err := count("infiniband")
	if err != nil {
		return err
	}
	bad, err := count("infiniband && _ws.malformed")
	if err != nil {
		return err
	}
	fmt.Printf("tshark: %d packets, %d malformed\n", all, bad)
	if all < packets || bad > 0 {
		return fmt.Errorf("%d packets, of which %d are malformed; %d were to be there", all, bad, packets)
	}
	return nil
}
