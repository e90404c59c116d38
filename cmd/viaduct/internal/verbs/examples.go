package verbs

import (
	"strings"

	"github.com/spf13/cobra"
)

// examples returns the examples of each command by command path. A line with # at the start
// describes the following command lines.
func examples() map[string]string {
	return map[string]string{
		"viaduct": `# run an unmodified RDMA program and its peer, without an RDMA adapter
viaduct run --rdma -- sh -c \
    'rping -s -C 2 & sleep 1; rping -c -a 127.0.0.1 -C 2'
# serve a directory, and fetch a file from it by RDMA Read
viaduct serve --root . --listen iwarp://:7471
viaduct get iwarp://server:7471/report.pdf
# print what an RDMA program sends
viaduct run --rdma --pcap x.pcapng -- rping -c -a server -C 2
viaduct decode x.pcapng`,
		"viaduct bench": `# all transports and plain TCP, on this host
viaduct bench
# RDMA Writes between two hosts, each of which runs one of these lines
viaduct bench --server tcp://:7700
viaduct bench --client tcp://server:7700 --ops write --sizes 64K,1M`,
		"viaduct completion": `# complete command lines in new shells of this user
viaduct completion bash >~/.local/share/bash-completion/completions/viaduct`,
		"viaduct config check": `# find the mistakes in a file before a service reads it
viaduct config check /etc/viaduct/serve.toml`,
		"viaduct conform": `# test an SDP server that echoes, with a report for continuous integration
viaduct conform sdp://server:7471 --junit report.xml
# test a client, which is started for each case
viaduct conform --listen iwarp://127.0.0.1:7471 --exec './client {address}'
# list all cases
viaduct conform --list`,
		"viaduct decode": `# print the messages that break a requirement
viaduct decode --filter wrong x.pcapng
# follow the traffic of this host
tcpdump -i lo -w - | viaduct decode -`,
		"viaduct demo": `# move 64 MiB of random bytes over every transport, both ways
viaduct demo
# move a file of your own
viaduct demo backup.tar`,
		"viaduct echo": `# return messages of two transports
viaduct echo --listen iwarp://:7471 --listen vitcp://0.0.0.0/echo`,
		"viaduct fabric": `# run a fabric, and two hosts in it
viaduct fabric --listen 192.0.2.1:3225
viaduct echo --listen 'fcvi://10.0.0.1/echo?fabric=192.0.2.1:3225'
viaduct ping 'fcvi://10.0.0.1/echo?fabric=192.0.2.1:3225&self=10.0.0.2'`,
		"viaduct get": `# fetch a file, and continue after an interruption
viaduct get iwarp://server:7471/backup.tar --resume
# fetch the contents of a directory into the current one
viaduct get -r vitcp://server/files/photos -o .
# send a file to another program
viaduct get sdp://server:7471/backup.tar -o - | tar tf -`,
		"viaduct ladder": `# draw how SDP moves bytes by RDMA Read
viaduct ladder --demo sdp-read-zcopy
# draw the second connection of a capture, as a web page
viaduct ladder x.pcapng --stream 2 -o x.html`,
		"viaduct ls": `# list a directory, and all PDF files below it
viaduct ls iwarp://server:7471/papers
viaduct ls 'iwarp://server:7471/papers/**/*.pdf'`,
		"viaduct man": `# write the pages and read one of them
viaduct man /tmp/man && man -M /tmp/man viaduct-serve`,
		"viaduct nc": `# send a file from one host to another: the first line on the receiver
viaduct nc -l sdp://:7471 >backup.tar
viaduct nc sdp://receiver:7471 <backup.tar`,
		"viaduct nvme serve": `# serve 1 GiB of memory and a disk image
viaduct nvme serve mem:1G disk.img --listen :4420
# attach them on a Linux host (as root)
rdma link add siw0 type siw netdev eth0
nvme connect -t rdma -a server -s 4420 -n nqn.2026-11.viaduct:disk`,
		"viaduct ping": `# a hundred round trips of 4 KiB, without pauses
viaduct ping iwarp://server:7471 -c 100 -s 4K -i 0`,
		"viaduct portmap serve": `# clients of port 80 on this host use SDP at port 8081
viaduct portmap serve --map :80=:8081`,
		"viaduct portmap query": `# ask a host where its port 80 speaks SDP
viaduct portmap query server:80`,
		"viaduct proxy": `# give a TCP server an SDP address
viaduct proxy --listen sdp://:7471 --to tcp://127.0.0.1:80
# let TCP clients of this host use it
viaduct proxy --listen tcp://127.0.0.1:8080 --to sdp://server:7471`,
		"viaduct ps": `# list connections, once and continuously
viaduct ps
viaduct ps --watch`,
		"viaduct put": `# store a file, and the output of a program
viaduct put backup.tar iwarp://server:7471/
tar cf - photos | viaduct put - iwarp://server:7471/photos.tar
# store directories
viaduct put -r photos papers vitcp://server/files`,
		"viaduct registry": `# show all records in an etcd cluster
viaduct registry etcd://etcd1,etcd2,etcd3/viaduct
# follow the SDP services in a file
viaduct registry file:/etc/viaduct/names sdp --watch`,
		"viaduct rping": `# exchange 100 verified rounds with an rping of any kind
viaduct rping -s -P
viaduct rping -c -a server -C 100 -V`,
		"viaduct run": `# give two RDMA programs a device each: siw0 reaches other hosts
viaduct run --rdma -- ib_write_bw -R
viaduct run --rdma -- ib_write_bw -R server
# run programs that need RoCE, under one command
viaduct run --rdma --device rxe0 -- mpirun -n 2 ./program
# carry the TCP connections of redis over SDP
viaduct run --listen 6379=7471 -- redis-server
viaduct run --to 192.0.2.1:6379=:7471 --explain -- redis-cli -h 192.0.2.1
# show what this machine allows
viaduct run --rdma --check`,
		"viaduct serve": `# let clients read and write a directory, by RDMA and by HTTP
viaduct serve --root . --writable --listen iwarp://:7471 --listen tcp://:8080
# serve only clients with the token, with a certificate
viaduct serve --root . --listen sdp://:7471 --token-file token \
    --tls-cert cert.pem --tls-key key.pem`,
		"viaduct stat": `# counters of all connections, and of one process without rates
viaduct stat
viaduct stat 4711 --interval 0 --all`,
		"viaduct sync": `# show what would be stored, then store it
viaduct sync photos iwarp://server:7471/photos --dry-run
viaduct sync photos iwarp://server:7471/photos`,
		"viaduct urls": `# parameters of an address, an IPv6 host, parameters of all SDP connections
viaduct ping 'iwarp://server:7471?crc=off&samehost=off'
viaduct get 'vitcp://[2001:db8::1]:7001/0x0a0b/file?mtu=64K'
VIADUCT_SDP=keepalive=30s viaduct nc sdp://server:7471`,
		"viaduct version": `# print the protocols and their revisions for a program
viaduct version --json`,
		"viaduct vipl check": `# what a program gets that opens the NIC nic0
viaduct vipl check nic0`,
		"viaduct wireshark": `# install the dissectors, and print a field of SDP
viaduct wireshark --install
tshark -o tcp.try_heuristic_first:TRUE -r x.pcapng -Y iwarp_sdp.mode`,
	}
}

// addExamples sets the examples of c and of all commands below c. A command with only subcommands
// gets the examples of the subcommands.
func addExamples(c *cobra.Command, of map[string]string) {
	var below []string
	for _, s := range c.Commands() {
		addExamples(s, of)
		if s.Example != "" {
			below = append(below, s.Example)
		}
	}
	if c.Example = of[c.CommandPath()]; c.Example == "" && c.HasParent() {
		c.Example = strings.Join(below, "\n")
	}
}
