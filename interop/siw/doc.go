// Siw runs Viaduct against an implementation of iWARP that is not ours: the
// software iWARP of the Linux kernel ("siw"), with rping of rdma-core on top.
//
//	go run ./interop/siw              # everything
//	go run ./interop/siw -v           # with the console of the guest
//	go run ./interop/siw -keep DIR    # and keep the captures
//	go run ./interop/siw -conform     # viaduct conform alone
//	go run ./interop/siw -rdma        # rping under viaduct run --rdma instead of viaduct's own
//	go run ./interop/siw -record      # renew interop/testdata, to be reviewed
//
// siw needs a kernel module and root, so it lives in a small virtual machine:
// Debian's kernel, siw compiled from Debian's kernel source, a busybox, rping
// and perftest in an initial RAM disk. The machine is built on the first run
// (a minute, some 230 MB from the Debian mirror) and kept in the user's cache
// directory, so that later runs take only the boot, a few seconds.
//
// Nothing needs root and nothing is installed. What has to be there: QEMU,
// busybox-static, gcc, make, xz and kmod to build the module, rping
// (rdmacm-utils), perftest and the verbs libraries (rdma-core,
// ibverbs-providers) to put in the machine, and tshark to look at captures. If
// something is missing the program says loudly what it skips, and exits 0; with
// -require it exits 1.
//
// # What is run
//
// In the guest the host is 10.0.2.2; on the host the guest's port 7174 is a
// port of 127.0.0.1, as are the two behind it. QEMU's user network ends TCP on both sides, which keeps
// the byte stream and not the segment borders.
//
//   - control: rping against rping inside the guest, and a plain connection from
//     the guest to the host, so that a failure of the environment is not taken
//     for one of ours.
//   - client: the guest's rping -c against viaduct rping -s.
//   - server: viaduct rping -c against the guest's rping -s.
//   - bandwidth: perftest's ib_write_bw, ib_read_bw and ib_send_bw in the guest, as
//     clients and as servers, against package interop/internal/perftest in this program. The
//     contents of what arrives here are verified; the guest's tools have to exit
//     with 0 and report the number of messages.
//   - conform: viaduct conform against the guest's rping -s, and with --listen against
//     its rping -c, which have to find the faults that siw is known to have, and no
//     others. The last one stops the guest's kernel.
//
// rping verifies data in both directions. Sizes are from 64 bytes to 64 KiB,
// with siw as it is shipped, without CRC, and with its CRC and its peer-to-peer
// start-up turned on. The card's traffic is captured, put into one segment for
// each frame and read by tshark, which has to find iWARP in it, nothing
// malformed and no bad CRC.
//
// With -nvme the guest's kernel attaches the disks of viaduct nvme serve instead, and mounts a
// tree that examples/9p serves: file systems, fio with verification, discard, resets, and a
// target that is killed under input and output.
package main
