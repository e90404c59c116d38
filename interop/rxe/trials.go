//go:build linux && (amd64 || arm64)

package main

import (
	"slices"
	"strings"
)

// trials lists the trials, the quickest first.
var trials = slices.Concat([]trial{
	{name: "ibv_devinfo", needs: []string{"ibv_devinfo"}, script: "ibv_devinfo -v", says: []string{"InfiniBand (0)", "PORT_ACTIVE", "$ADDR", "RoCE v2"}},
}, pingpongs(), perftests(), cmPrograms, fabrics, []trial{
	{name: "pyverbs", needs: []string{"python3", pyverbsTests}, script: pyverbsScript, judge: judgePyverbs, slow: true},
}, mpis())

// pingpongs returns trials of rdma-core's examples. The examples connect queue pairs over TCP.
func pingpongs() (all []trial) {
	for _, typ := range []string{"rc", "uc", "ud", "srq"} {
		name := "ibv_" + typ + "_pingpong"
		for _, opt := range []string{"-g 1 -c -n 200", "-g 1 -c -e -n 200", "-g 1 -c -s 1 -n 50", "-g 1 -c -s 1048576 -n 10"} {
			if typ == "ud" && strings.Contains(opt, "1048576") {
				opt = "-g 1 -c -s 1024 -n 100"
			}
			all = append(all, trial{name: name + " " + opt, needs: []string{name}, script: pair(name+" -p $PORT "+opt, name+" -p $PORT "+opt+" $ADDR"),
				says: []string{" iters in "}})
		}
	}
	return all
}

// perftests returns trials of perftest's tools. The tools connect queue pairs over TCP, or with -R
// by rdma_cm.
func perftests() (all []trial) {
	for _, c := range []struct {
		tool string
		opts []string
		long []string
	}{
		{"ib_send_lat", []string{"", "-c UC", "-c UD", "-e", "-R", "-c UD -R"}, []string{"-e -R", "--use-srq"}},
		{"ib_send_bw", []string{"", "-b", "-c UC", "-c UD", "--use-srq", "-l 32", "-R"},
			[]string{"-e", "-q 8 -b", "-q 8 -b -c UC", "-q 8 -b -c UD", "-c UD -R", "--use-srq -R", "-l 32 -c UC", "-l 32 -c UD"}},
		{"ib_write_lat", []string{"", "-c UC", "-R"}, []string{"-s 1048576"}},
		{"ib_write_bw", []string{"", "-q 8 -b", "-l 32", "-R"}, []string{"-c UC", "-q 8 -b -c UC", "-q 8 -b -R", "-l 32 -q 8"}},
		{"ib_read_lat", []string{"", "-e", "-R"}, []string{"-s 1048576"}},
		{"ib_read_bw", []string{"", "-b", "-R"}, []string{"-e", "-q 8 -b", "-l 32", "-q 8 -b -R"}},
		{"ib_atomic_lat", []string{"", "-A CMP_AND_SWAP"}, []string{"-e", "-R"}},
		{"ib_atomic_bw", []string{"", "-A CMP_AND_SWAP"}, []string{"-e", "-b", "-R", "-q 8 -b", "-l 32"}},
	} {
		for i, opt := range append(c.opts, c.long...) {
			p := c.tool + " -F -n $MESSAGES -p $PORT " + opt
			script := pair(p, p+" $ADDR")
			if strings.Contains(opt, "-R") {
				script = pairCM(p, p+" $ADDR")
			}
			all = append(all, trial{name: strings.TrimSpace(c.tool + " " + opt), needs: []string{c.tool}, script: script,
				says: []string{"#bytes"}, long: i >= len(c.opts)})
		}
	}
	return all
}

// mckey starts the sender when the receiver has joined the group, because what is sent before is
// lost.
const mckey = `stdbuf -oL mckey -m 239.1.1.1 -b $ADDR >joined & s=$!; until grep -q "joined dgid" joined; do sleep 0.1; done
mckey -m 239.1.1.1 -b $ADDR -s; c=$?; wait $s; e=$?; cat joined; exit $((e + c))`

// cmtime's newer versions synchronize the two ends by TCP. In older versions the server does not
// end by itself.
var cmtime = "if cmtime -h 2>&1 | grep -q controller; then " +
	pair("cmtime -c 20 -C $ADDR -p $PORT -b $ADDR -L", "cmtime -c 20 -C $ADDR -p $PORT -b $ADDR") + "; fi\n" +
	"cmtime -b $ADDR & s=$!; sleep 0.5; retry cmtime -s $ADDR -c 20; c=$?; kill $s; wait $s; exit $c"

// cmPrograms are trials of programs on rdma_cm over RoCE.
var cmPrograms = []trial{
	{name: "rping", needs: []string{"rping"}, script: pairCM("rping -s -v -C 20 -a $ADDR", "rping -c -v -C 20 -a $ADDR"), says: []string{"ping data: rdma-ping-19"}},
	{name: "ucmatose", needs: []string{"ucmatose"}, script: pairCM("ucmatose", "ucmatose -s 127.0.0.1"), says: []string{"data transfers complete", "return status 0"}},
	{name: "udaddy", needs: []string{"udaddy"}, script: pairCM("udaddy", "udaddy -s $ADDR"), says: []string{"data transfers complete", "return status 0"}},
	{name: "mckey", needs: []string{"mckey"}, script: mckey,
		says: []string{"data transfers complete", "return status 0"}},
	{name: "cmtime", needs: []string{"cmtime"}, script: cmtime,
		says: []string{"resolve route", "disconnect"}},
	{name: "rdma_client", needs: []string{"rdma_client"}, script: pairCM("rdma_server", "rdma_client -s $ADDR"), says: []string{"rdma_client: end 0", "rdma_server: end 0"}},
	{name: "rstream", needs: []string{"rstream"}, script: pairCM("rstream -S 4096 -C 100 -b $ADDR", "rstream -S 4096 -C 100 -s $ADDR"), says: []string{"custom"}},
	{name: "riostream", needs: []string{"riostream"}, script: pairCM("riostream -S 4096 -C 100 -b $ADDR", "riostream -S 4096 -C 100 -s $ADDR"), says: []string{"custom"}},
	qperf("qperf", false, "rc_lat rc_bw rc_rdma_write_bw rc_compare_swap_mr"),
	qperf("qperf, other tests", true, "rc_bi_bw rc_rdma_read_lat rc_rdma_read_bw rc_rdma_write_lat rc_rdma_write_poll_lat rc_fetch_add_mr"),
	fio("fio", false, "write", "read", "write"),
	fio("fio verb=read", true, "read", "read", "write"),
	fio("fio send", true, "send", "read", "write"),
}

// qperf returns a trial of qperf's tests. Unless connecting by rdma_cm, qperf uses the first GID of
// the device. A side waits for a minute for the other: in 5 s, its default, a busy machine may not let
// the other answer.
func qperf(name string, long bool, tests string) trial {
	return trial{name: name, long: long, needs: []string{"qperf"}, says: strings.Fields(tests),
		script: `qperf -lp $PORT -lto 60 & listens; qperf -lp $PORT -t 1 -to 60 -cm1 $ADDR ` + tests + `; c=$?; qperf -lp $PORT -to 60 $ADDR quit; wait; exit $c`}
}

// fio returns a trial that runs a fio job at each end. verb is the operation of the client; the
// output of both ends must show the direction of the bytes. In fio, --rw chooses the role and
// --verb the operation: a reading job listens, and a writing job connects, even if the verb is
// read. fio connects with an RNR retry count of 0, and a Send without a posted receive fails. The
// server therefore posts the receives of all 64 Sends in advance.
func fio(name string, long bool, verb, server, client string) trial {
	job := func(name, verb, rw string) string {
		return "fio --name=" + name + " --ioengine=rdma --hostname=$ADDR --port=18999 --verb=" + verb + " --rw=" + rw + " --bs=64k --size=4m --thread"
	}
	at := verb
	if verb == "send" {
		at = "recv --iodepth=64"
	}
	return trial{name: name, long: long, needs: []string{"fio"}, script: pairCM(job("s", at, server), job("c", verb, client)),
		says: []string{strings.ToUpper(client) + ": bw="}}
}

// fabrics are trials of libfabric and UCX.
var fabrics = slices.Concat([]trial{
	fiPingpong("msg", "", false), fiPingpong("dgram", "-S 512", false), fiPingpong("msg", "-S all", true), fiPingpong("dgram", "-S 64", true),
	{name: "ucx_info", needs: []string{"ucx_info"}, script: "ucx_info -d", says: []string{"Transport: rc_verbs", "Transport: ud_verbs"}},
}, ucxTrials())

func fiPingpong(endpoint, opt string, long bool) trial {
	p := strings.TrimSpace("fi_pingpong -p verbs -e " + endpoint + " -I 50 " + opt)
	return trial{name: strings.TrimSpace("fi_pingpong " + endpoint + " " + opt), long: long, needs: []string{"fi_pingpong"},
		script: pair(p+" -B $PORT", p+" -P $PORT $ADDR"), says: []string{"bytes"}}
}

// ucxTrials returns trials of UCX's transports themselves (uct), and of the protocols on top of
// them (ucp).
func ucxTrials() (all []trial) {
	ucx := func(name, env, opts string, long bool) {
		p := env + " ucx_perftest -p $PORT -n 200 -w 20 " + opts
		all = append(all, trial{name: "ucx_perftest " + name, needs: []string{"ucx_perftest"}, script: pair(p, p+" $ADDR"), says: []string{"Final:"}, long: long})
	}
	uct := func(transport string, long bool, tests ...string) {
		for _, t := range tests {
			ucx(transport+" "+t, "", "-d rxe0:1 -x "+transport+" -t "+t, long)
		}
	}
	ucp := func(tls string, long bool, tests ...string) {
		for _, t := range tests {
			ucx(tls+" "+t, "UCX_TLS="+tls+",self", "-t "+t, long)
		}
	}
	uct("rc_verbs", false, "am_lat", "put_lat", "fadd", "cswap")
	uct("rc_verbs", true, "am_bw", "am_mr", "put_bw", "add_mr")
	uct("ud_verbs", false, "am_lat")
	uct("ud_verbs", true, "am_bw", "am_mr")
	ucp("rc", false, "tag_lat", "stream_lat", "ucp_put_lat", "ucp_get", "ucp_fadd", "ucp_cswap")
	ucp("rc", true, "tag_bw", "tag_sync_lat", "stream_bw", "ucp_put_bw", "ucp_add", "ucp_swap", "ucp_am_lat", "ucp_am_bw")
	ucp("ud", false, "tag_lat")
	ucp("ud", true, "tag_bw", "stream_lat", "stream_bw", "ucp_put_lat", "ucp_put_bw", "ucp_get", "ucp_fadd", "ucp_cswap", "ucp_am_lat")
	return all
}
