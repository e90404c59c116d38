//go:build linux && (amd64 || arm64)

package main

import (
	"slices"
	"strings"
)

// trials are what is tried, the quickest first.
var trials = slices.Concat([]trial{
	{name: "ibv_devinfo", needs: []string{"ibv_devinfo"}, script: "ibv_devinfo -v", says: []string{"InfiniBand (0)", "PORT_ACTIVE", "ADDR", "RoCE v2"}},
}, pingpongs(), perftests(), cmPrograms, fabrics, []trial{
	{name: "pyverbs", needs: []string{"python3", pyverbsTests}, script: pyverbsScript, judge: judgePyverbs, slow: true},
}, mpis())

// pingpongs are rdma-core's examples, which connect queue pairs over TCP.
func pingpongs() (all []trial) {
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		name := "ibv_" + typ + "_pingpong"
		for _, opt := range []string{"-g 1 -c -n 200", "-g 1 -c -e -n 200", "-g 1 -c -s 1 -n 50", "-g 1 -c -s 1048576 -n 10"} {
			if typ == "ud" && strings.Contains(opt, "1048576") {
				opt = "-g 1 -c -s 1024 -n 100"
			}
			all = append(all, trial{name: name + " " + opt, needs: []string{name}, script: pair(name+" "+opt, name+" "+opt+" ADDR"),
				says: []string{" iters in "}})
		}
	}
	return all
}

// perftests are those of linux-rdma, which connect queue pairs over TCP, and with -R by rdma_cm.
func perftests() (all []trial) {
	for _, c := range []struct {
		tool string
		opts []string
	}{
		{"ib_send_lat", []string{"", "-c UC", "-c UD", "-e", "-R", "-c UD -R"}},
		{"ib_send_bw", []string{"", "-b", "-c UC", "-c UD", "--use-srq -q 4", "-l 32", "-R"}},
		{"ib_write_lat", []string{"", "-c UC", "-R"}},
		{"ib_write_bw", []string{"", "-q 8 -b", "-l 32", "-R"}},
		{"ib_read_lat", []string{"", "-e", "-R"}},
		{"ib_read_bw", []string{"", "-b", "-R"}},
		{"ib_atomic_lat", []string{"", "-A CMP_AND_SWAP"}},
		{"ib_atomic_bw", []string{"", "-A CMP_AND_SWAP"}},
	} {
		for _, opt := range c.opts {
			p := c.tool + " -F -n 320 " + opt // a multiple of the length of lists
			all = append(all, trial{name: strings.TrimSpace(c.tool + " " + opt), needs: []string{c.tool}, script: pair(p, p+" ADDR"),
				says: []string{"#bytes"}})
		}
	}
	return all
}

// cmPrograms use rdma_cm, in the form of RoCE.
var cmPrograms = []trial{
	{name: "rping", needs: []string{"rping"}, script: pair("rping -s -v -C 20 -a ADDR", "rping -c -v -C 20 -a ADDR"), says: []string{"ping data: rdma-ping-19"}},
	{name: "ucmatose", needs: []string{"ucmatose"}, script: pair("ucmatose", "ucmatose -s 127.0.0.1"), says: []string{"data transfers complete", "return status 0"}},
	{name: "udaddy", needs: []string{"udaddy"}, script: pair("udaddy", "udaddy -s ADDR"), says: []string{"data transfers complete", "return status 0"}},
	{name: "mckey", needs: []string{"mckey"}, script: pair("mckey -m 239.1.1.1 -b ADDR", "mckey -m 239.1.1.1 -b ADDR -s"),
		says: []string{"data transfers complete", "return status 0"}},
	{name: "rdma_client", needs: []string{"rdma_client"}, script: pair("rdma_server", "rdma_client -s ADDR"), says: []string{"rdma_client: end 0", "rdma_server: end 0"}},
	{name: "rstream", needs: []string{"rstream"}, script: pair("rstream -S 4096 -C 100 -b ADDR", "rstream -S 4096 -C 100 -s ADDR"), says: []string{"custom"}},
	{name: "riostream", needs: []string{"riostream"}, script: pair("riostream -S 4096 -C 100 -b ADDR", "riostream -S 4096 -C 100 -s ADDR"), says: []string{"custom"}},
	{name: "qperf", needs: []string{"qperf"}, script: `qperf & sleep 0.5; qperf -t 1 -cm1 ADDR rc_lat rc_bw rc_rdma_write_bw rc_compare_swap_mr; c=$?; qperf ADDR quit; wait; exit $c`,
		says: []string{"rc_rdma_write_bw", "rc_compare_swap_mr"}},
	{name: "fio", needs: []string{"fio"}, script: pair(
		"fio --name=s --ioengine=rdma --hostname=ADDR --port=18999 --verb=write --rw=read --bs=64k --size=4m --thread",
		"fio --name=c --ioengine=rdma --hostname=ADDR --port=18999 --verb=write --rw=write --bs=64k --size=4m --thread"), says: []string{"WRITE: bw="}},
}

// fabrics are libfabric and UCX.
var fabrics = slices.Concat([]trial{
	{name: "fi_pingpong msg", needs: []string{"fi_pingpong"}, script: pair("fi_pingpong -p verbs -e msg -I 50", "fi_pingpong -p verbs -e msg -I 50 ADDR"), says: []string{"bytes"}},
	{name: "fi_pingpong dgram", needs: []string{"fi_pingpong"}, script: pair("fi_pingpong -p verbs -e dgram -I 50 -S 512", "fi_pingpong -p verbs -e dgram -I 50 -S 512 ADDR"), says: []string{"bytes"}},
	{name: "ucx_info", needs: []string{"ucx_info"}, script: "ucx_info -d", says: []string{"Transport: rc_verbs", "Transport: ud_verbs"}},
}, ucxTrials())

func ucxTrials() (all []trial) {
	ucx := func(name, env, opts string) {
		p := env + " ucx_perftest -n 200 -w 20 " + opts
		all = append(all, trial{name: "ucx_perftest " + name, needs: []string{"ucx_perftest"}, script: pair(p, p+" ADDR"), says: []string{"Final:"}})
	}
	for _, c := range []struct{ tl, test string }{{"rc_verbs", "am_lat"}, {"rc_verbs", "put_lat"}, {"rc_verbs", "fadd"}, {"rc_verbs", "cswap"}, {"ud_verbs", "am_lat"}} {
		ucx(c.tl+" "+c.test, "", "-d rxe0:1 -x "+c.tl+" -t "+c.test)
	}
	for _, test := range []string{"tag_lat", "stream_lat", "ucp_put_lat", "ucp_get", "ucp_fadd", "ucp_cswap"} {
		ucx("rc "+test, "UCX_TLS=rc,self", "-t "+test)
	}
	ucx("ud tag_lat", "UCX_TLS=ud,self", "-t tag_lat")
	return all
}
