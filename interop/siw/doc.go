// Siw tests Viaduct against an independent implementation of iWARP: the software iWARP of the Linux
// kernel ("siw"), with rping of rdma-core.
//
//	go run ./interop/siw              # everything
//	go run ./interop/siw -v           # with the console of the guest
//	go run ./interop/siw -keep DIR    # and keep the captures
//	go run ./interop/siw -conform     # viaduct conform alone
//	go run ./interop/siw -rdma        # rping under viaduct run --rdma instead of viaduct's own
//	go run ./interop/siw -record      # renew interop/testdata, to be reviewed
//
// siw needs a kernel module and root, so it runs in a small virtual machine: Debian's kernel, siw
// compiled from Debian's kernel source, a busybox, rping and perftest in an initial RAM disk. The
// machine is built on the first run (a minute, some 230 MB from the Debian mirror) and kept in the
// user's cache directory. Later runs only need a few seconds to boot it.
//
// The program does not need root, and installs nothing. It requires QEMU; busybox-static, gcc,
// make, xz and kmod to build the module; rping (rdmacm-utils), perftest and the verbs libraries
// (rdma-core, ibverbs-providers) for the machine; and tshark to read captures. If something is
// missing, the program prints loudly what it skips, and exits 0, or 1 with -require.
//
// # What is run
//
// In the guest, the host is 10.0.2.2. On the host, the guest's port 7174 is a port of 127.0.0.1, as
// are the next two. QEMU's user network terminates TCP on both sides, so it keeps the byte stream
// but not the segment boundaries.
//
//   - control: rping against rping inside the guest, and a plain connection from the guest to the
//     host, so that a failure of the environment is not taken for a failure of ours.
//   - client: the guest's rping -c against viaduct rping -s.
//   - server: viaduct rping -c against the guest's rping -s.
//   - bandwidth: perftest's ib_write_bw, ib_read_bw and ib_send_bw in the guest, as
//     clients and as servers, against package interop/internal/perftest in this program. The
//     contents of received messages are verified; the guest's tools have to exit
//     with 0 and report the number of messages.
//   - conform: viaduct conform against the guest's rping -s, and with --listen against
//     its rping -c. It must find the known faults of siw, and no others. The last case
//     crashes the guest's kernel.
//
// rping verifies data in both directions. Sizes are from 64 bytes to 64 KiB, with siw as shipped,
// without CRC, and with CRC and peer-to-peer start-up turned on. The traffic of the guest's network
// card is captured and rewritten with a segment for each frame. tshark must find iWARP in the
// capture, and neither a malformed packet nor a bad CRC.
//
// With -nvme, instead, the guest's kernel attaches the disks of viaduct nvme serve, and mounts a
// tree that examples/9p serves. That tests file systems, fio with verification, discard, resets,
// and a target that is killed during input and output.
// With -soak 1h in addition, the guest verifies 1 GiB, and then repeats verified input and output at
// a limited rate for an hour, with a reset every minute. Every sixth round restarts the target.
package main
