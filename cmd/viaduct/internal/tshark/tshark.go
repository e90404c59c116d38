// Package tshark compares the output of viaduct decode for a capture with tshark's, field by field.
// The package is for tests. tshark's own dissectors for MPA, DDP, RDMAP, FCIP, Fibre Channel and
// InfiniBand (RoCEv2) are independent of this module's codecs. For other protocols, tshark runs our
// Lua dissectors.
package tshark

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"viaduct/cmd/viaduct/internal/wireshark"
	"viaduct/internal/fc"
)

// ErrAbsent reports a missing installation of tshark.
var ErrAbsent = errors.New("tshark is not installed")

// A Shark is an installed tshark with the Lua dissectors of this module. A Shark is safe for
// concurrent use.
type Shark struct{ path, home string }

// New prepares tshark with home as the home directory and writes the dissectors there. New returns
// ErrAbsent if tshark is not installed.
func New(home string) (*Shark, error) {
	path, err := exec.LookPath("tshark")
	if err != nil {
		return nil, ErrAbsent
	}
	_, err = wireshark.Install(filepath.Join(home, ".local", "lib", "wireshark", "plugins"))
	return &Shark{path, home}, err
}

// own maps each layer with a Lua dissector of ours to the name of the dissector.
var own = map[string]string{"sdp": "iwarp_sdp", "portmap": "sdp_portmap", "vitcp": "vitcp", "fcvi": "fcvi"}

// native maps fields of decode to the fields of tshark's own dissectors. If tshark uses different
// fields in different messages, all are listed.
var native = map[string][]string{
	"mpa.ulpdu_length": {"iwarp_mpa.ulpdulength"}, "mpa.rev": {"iwarp_mpa.rev"}, "mpa.crc_wanted": {"iwarp_mpa.crc_flag"},
	"mpa.markers": {"iwarp_mpa.marker_flag"}, "mpa.reject": {"iwarp_mpa.rej_flag"}, "mpa.pd_length": {"iwarp_mpa.pdlength"},
	"ddp.tagged": {"iwarp_ddp.tagged_flag"}, "ddp.last": {"iwarp_ddp.last_flag"}, "ddp.stag": {"iwarp_ddp.stag"},
	"ddp.to": {"iwarp_ddp.tagged_offset"}, "ddp.qn": {"iwarp_ddp.qn"}, "ddp.msn": {"iwarp_ddp.msn"}, "ddp.mo": {"iwarp_ddp.mo"},
	"rdmap.opcode": {"iwarp_rdma.opcode"}, "rdmap.sink_stag": {"iwarp_rdma.sinkstag"}, "rdmap.sink_to": {"iwarp_rdma.sinkto"},
	"rdmap.size": {"iwarp_rdma.rdmardsz"}, "rdmap.source_stag": {"iwarp_rdma.srcstag"}, "rdmap.source_to": {"iwarp_rdma.srcto"},
	"rdmap.term_layer": {"iwarp_rdma.term_layer"},
	"rdmap.term_etype": {"iwarp_rdma.term_etype_rdma", "iwarp_rdma.term_etype_ddp", "iwarp_rdma.term_etype_llp", "iwarp_rdma.term_etype"},
	"rdmap.term_code": {"iwarp_rdma.term_errcode_rdma", "iwarp_rdma.term_errcode_ddp_tagged", "iwarp_rdma.term_errcode_ddp_untagged",
		"iwarp_rdma.term_errcode", "iwarp_rdma.term_errcode_llp"},
	"fc.r_ctl": {"fc.r_ctl"}, "fc.s_id": {"fc.s_id"}, "fc.d_id": {"fc.d_id"}, "fc.type": {"fc.type"}, "fc.f_ctl": {"fc.f_ctl"}, "fc.seq_id": {"fc.seq_id"},
	"fc.df_ctl": {"fc.df_ctl"}, "fc.seq_cnt": {"fc.seq_cnt"}, "fc.ox_id": {"fc.ox_id"}, "fc.rx_id": {"fc.rx_id"}, "fc.parameter": {"fc.parameter"},
	"fc.els": {"fcels.opcode"}, "fc.sof": {"fcip.sof"}, "fc.eof": {"fcip.eof"},
	"fcip.length": {"fcip.framelen"}, "fcip.source": {"fcip.srcwwn"}, "fcip.entity": {"fcip.srcid"},
	"fcip.nonce": {"fcip.nonce"},
	"bth.opcode": {"infiniband.bth.opcode"}, "bth.solicited": {"infiniband.bth.se"}, "bth.migrated": {"infiniband.bth.m"},
	"bth.pad": {"infiniband.bth.padcnt"}, "bth.version": {"infiniband.bth.tver"}, "bth.pkey": {"infiniband.bth.p_key"},
	"bth.qpn": {"infiniband.bth.destqp"}, "bth.ack_req": {"infiniband.bth.a"}, "bth.psn": {"infiniband.bth.psn"},
	"deth.qkey": {"infiniband.deth.q_key"}, "deth.source_qpn": {"infiniband.deth.srcqp"},
	"reth.va": {"infiniband.reth.va"}, "reth.rkey": {"infiniband.reth.r_key"}, "reth.length": {"infiniband.reth.dmalen"},
	"atomic.swap_add": {"infiniband.atomiceth.swapdt"}, "atomic.compare": {"infiniband.atomiceth.cmpdt"},
	"aeth.syndrome": {"infiniband.aeth.syndrome"}, "aeth.msn": {"infiniband.aeth.msn"}, "atomic_ack.value": {"infiniband.atomicacketh.origremdt"},
	"imm.data": {"infiniband.immdt"}, "ieth.rkey": {"infiniband.ieth"},
	"cm.tid": {"infiniband.mad.transactionid"},
	"cm.local": {"infiniband.cm.req", "infiniband.cm.rep", "infiniband.cm.rtu.localcommid", "infiniband.cm.rej.localcommid",
		"infiniband.cm.dreq.localcommid", "infiniband.cm.drsp.localcommid"},
	"cm.remote": {"infiniband.cm.rep.remotecommid", "infiniband.cm.rtu.remotecommid", "infiniband.cm.rej.remotecommid",
		"infiniband.cm.dreq.remotecommid", "infiniband.cm.drsp.remotecommid"},
	"cm.service_id": {"infiniband.cm.req.serviceid"}, "cm.guid": {"infiniband.cm.req.localcaguid", "infiniband.cm.rep.localcaguid"},
	"cm.qpn":       {"infiniband.cm.req.localqpn", "infiniband.cm.rep.localqpn", "infiniband.cm.req.remoteqpneecn"},
	"cm.psn":       {"infiniband.cm.req.startpsn", "infiniband.cm.rep.startpsn"},
	"cm.responder": {"infiniband.cm.req.responderres", "infiniband.cm.rep.respres"},
	"cm.initiator": {"infiniband.cm.req.initdepth", "infiniband.cm.rep.initdepth"}, "cm.retries": {"infiniband.cm.req.retrcount"},
	"cm.rnr_retries": {"infiniband.cm.req.rnrretrcount", "infiniband.cm.rep.rnrretrcount"},
	"cm.srq":         {"infiniband.cm.req.srq", "infiniband.cm.rep.srq"}, "cm.transport": {"infiniband.cm.req.transpsvctype"},
	"cm.pkey": {"infiniband.cm.req.pkey"}, "cm.mtu": {"infiniband.cm.req.pppmtu"}, "cm.response_time": {"infiniband.cm.req.remoteresptout"},
	"cm.local_time": {"infiniband.cm.req.localresptout"}, "cm.max_retries": {"infiniband.cm.req.maxcmretr"},
	"cm.ack_timeout": {"infiniband.cm.req.prim_localacktout"}, "cm.about": {"infiniband.cm.rej.msgrej"}, "cm.reason": {"infiniband.cm.rej.reason"},
}

// shared maps a field to the field of ours under whose name tshark shows the value.
var shared = map[string]string{"atomic.va": "reth.va", "atomic.rkey": "reth.rkey"}

// twice are fields shown by tshark two times with the same name: as a header, and as the only field
// of the header.
var twice = map[string]bool{"imm.data": true, "ieth.rkey": true}

// headless maps names of messages to the only field tshark shows of the message.
var headless = map[string]string{"MRA": "cm.tid", "SIDR_REQ": "cm.tid", "SIDR_REP": "cm.tid"}

// silent are the fields not shown by tshark, or shown only as a part of other text.
var silent = map[string]bool{
	"mpa.crc": true, "mpa.private": true, "mpa.peer_to_peer": true, "mpa.rtr": true, "mpa.ird": true, "mpa.ord": true, // tshark does not know MPA revision 2
	"ddp.payload": true, "rdmap.segments": true, "rdmap.bytes": true, "rdmap.term_text": true, "rdmap.term_mpa": true, "rdmap.term_seglen": true,
	"rdmap.invalidate_stag": true, "vitcp.segments": true, "vitcp.bytes": true, // computed over several segments
	"fcip.destination": true, "fcip.k_a_tov": true, // Wireshark 4.0 reads these two bytes too late
	"fcip.changed": true, // tshark shows it for every frame
	"fc.payload":   true, "fc.ct": true,
	"tcp.bytes": true, "tcp.skipped": true,
	"aeth.text": true, "roce.icrc": true, "roce.payload": true,
	"cm.source_gid": true, "cm.destination_gid": true, "cm.source": true, "cm.destination": true, // shown as several fields
}

// theirs returns tshark's names for one of our fields. theirs returns nil for a field not shown by
// tshark, and an error for an unknown field.
func theirs(key string) ([]string, error) {
	if names, ok := native[key]; ok || silent[key] {
		return names, nil
	}
	layer, rest, _ := strings.Cut(key, ".")
	if own[layer] == "" {
		return nil, fmt.Errorf("decode says %s, of which it is not known what tshark calls it", key)
	}
	return []string{own[layer] + "." + rest}, nil
}

// faults are the fields forbidden in tshark's output for any packet.
var faults = []string{"_ws.lua.error", "_ws.malformed", "tcp.analysis.lost_segment", "tcp.analysis.ack_lost_segment"}

// A Report is the result of a comparison.
type Report struct {
	Packets  int            // packets of the capture
	Messages int            // messages that were compared
	Fields   map[string]int // number of compared values, by decode's key
	Differ   []string       // descriptions of the differences
}

// A seen is a value of a field in a packet.
type seen struct {
	frame int
	value string
}

// Compare compares decoded, the output of decode --json --segments for the file capture, with
// tshark's output. Both must have the same values of every field, in the same packets and in the
// same order. Differences are in the Report. The error is not nil if the comparison could not be
// made.
func (s *Shark) Compare(ctx context.Context, capture string, decoded []byte) (*Report, error) {
	r := &Report{Fields: make(map[string]int)}
	ours := make(map[string][]seen)
	columns := make(map[string]int) // index of each field in the lines of tshark's output
	args := []string{"-r", capture, "-o", "fc.reassemble:FALSE", "-o", "infiniband.identify_payload:FALSE",
		"-T", "fields",
		"-E", "occurrence=a", "-E", "aggregator=~", "-e", "frame.number"}
	for _, fault := range faults {
		args = append(args, "-e", fault)
	}
	fixed := 1 + len(faults)
	// Disable rpcordma because it decodes Sends of other protocols, and the other dissectors
	// because their ports are in the range from which the system picks ports for any process.
	for _, not := range []string{"rpcordma", "irc", "pcp", "pmproxy", "cbsp", "ams", "enip", "ecatf"} {
		args = append(args, "--disable-protocol", not)
	}
	as := make(map[string]bool) // protocols at ports other than the assigned ones
	for line := range bytes.Lines(decoded) {
		var m struct {
			Frame  int
			Proto  string
			Name   string
			Dir    string
			Src    netip.AddrPort
			Dst    netip.AddrPort
			Fields map[string]any
		}
		d := json.NewDecoder(bytes.NewReader(line))
		d.UseNumber()
		if err := d.Decode(&m); err != nil {
			return nil, fmt.Errorf("decode wrote %q: %w", line, err)
		}
		r.Messages++
		switch {
		case m.Proto == "fcip" && m.Dir == ">":
			as[fmt.Sprintf("tcp.port==%d,fcip", m.Dst.Port())] = true
		case m.Proto == "portmap": // name both ports, since tshark uses the dissector of the lower one
			as[fmt.Sprintf("udp.port==%d,sdp_portmap", m.Src.Port())] = true
			as[fmt.Sprintf("udp.port==%d,sdp_portmap", m.Dst.Port())] = true
		}
		for key, v := range m.Fields {
			if only, ok := headless[m.Name]; ok && m.Proto == "cm" && strings.HasPrefix(key, "cm.") && key != only {
				continue
			}
			if of, ok := shared[key]; ok {
				key = of
			}
			names, err := theirs(key)
			if err != nil {
				return nil, err
			}
			if names == nil {
				continue
			}
			ours[key] = append(ours[key], seen{m.Frame, value(key, fmt.Sprint(v))})
			for _, name := range names {
				if _, ok := columns[name]; !ok {
					columns[name] = fixed + len(columns)
					args = append(args, "-e", name)
				}
			}
		}
	}
	for x := range as {
		args = append(args, "-d", x)
	}
	if len(as) == 0 { // any port may have any protocol
		args = append(args, "-o", "tcp.try_heuristic_first:TRUE")
	}
	rows, err := s.run(ctx, args)
	if err != nil {
		return nil, err
	}
	r.Packets = len(rows)
	shows := make(map[string][]seen)
	for _, cols := range rows {
		if len(cols) != fixed+len(columns) {
			return nil, fmt.Errorf("tshark writes %d columns, %d were asked for", len(cols), fixed+len(columns))
		}
		frame, err := strconv.Atoi(cols[0])
		if err != nil {
			return nil, fmt.Errorf("tshark numbers a packet %q", cols[0])
		}
		for i, fault := range faults {
			if s := cols[1+i]; s != "" {
				r.Differ = append(r.Differ, fmt.Sprintf("packet %d: tshark says %s %s", frame, fault, s))
			}
		}
		for key := range ours {
			names, _ := theirs(key)
			for _, name := range names {
				for v := range strings.SplitSeq(cols[columns[name]], "~") {
					if n := len(shows[key]); twice[key] && n > 0 && shows[key][n-1].frame == frame {
						continue
					}
					if v != "" {
						shows[key] = append(shows[key], seen{frame, shown(key, v)})
					}
				}
			}
		}
	}
	for key, list := range ours {
		slices.SortStableFunc(list, func(a, b seen) int { return cmp.Compare(a.frame, b.frame) })
		r.Fields[key] = len(list)
		if d := difference(list, shows[key]); d != "" {
			r.Differ = append(r.Differ, key+": "+d)
		}
	}
	slices.Sort(r.Differ)
	return r, nil
}

// run runs tshark and returns the columns of each output line.
func (s *Shark) run(ctx context.Context, args []string) (rows [][]string, err error) {
	cmd := exec.CommandContext(ctx, s.path, args...)
	cmd.Env = append(os.Environ(), "HOME="+s.home, "XDG_CONFIG_HOME="+s.home)
	var errs strings.Builder
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return nil, fmt.Errorf("tshark: %w\n%s", err, errs.String())
	}
	if strings.Contains(strings.ToLower(errs.String()), "lua") {
		return nil, fmt.Errorf("tshark: %s", errs.String())
	}
	for line := range strings.Lines(string(out)) {
		rows = append(rows, strings.Split(strings.TrimRight(line, "\n"), "\t"))
	}
	return rows, nil
}

// difference describes the first difference of two lists. difference returns "" for equal lists.
func difference(ours, shows []seen) string {
	for i, a := range ours {
		switch {
		case i == len(shows):
			return fmt.Sprintf("packet %d has %s, and tshark shows %d of %d", a.frame, a.value, i, len(ours))
		case shows[i] != a:
			return fmt.Sprintf("%s in packet %d, tshark shows %s in packet %d", a.value, a.frame,
				shows[i].value, shows[i].frame)
		}
	}
	if len(shows) > len(ours) {
		x := shows[len(ours)]
		return fmt.Sprintf("tshark shows %d of %d: %s in packet %d is not decoded", len(shows),
			len(ours), x.value, x.frame)
	}
	return ""
}

// value converts a value of decode to the form of shown for tshark's values.
func value(key, s string) string {
	switch s {
	case "true", "True":
		return "1"
	case "false", "False":
		return "0"
	}
	if inBytes[key] {
		return strings.TrimLeft(strings.TrimPrefix(s, "0x"), "0")
	}
	if n, err := strconv.ParseUint(s, 0, 64); err == nil {
		return strconv.FormatUint(n, 10)
	}
	return s
}

// inBytes are numbers printed as bytes by tshark.
var inBytes = map[string]bool{
	"fc.s_id": true, "fc.d_id": true, "fcip.source": true, "fcip.destination": true, "fcip.entity": true, "fcip.nonce": true,
	"imm.data": true, "ieth.rkey": true,
}

// shown converts a value of tshark to the form of value for decode's values.
func shown(key, s string) string {
	if inBytes[key] {
		return value(key, strings.NewReplacer(":", "", ".", "").Replace(s))
	}
	s = value(key, s)
	if n, err := strconv.ParseUint(s, 10, 16); err == nil {
		switch key {
		case "fcip.length": // in words
			return strconv.FormatUint(4*n, 10)
		case "fc.sof":
			return fc.SOF(n).String()
		case "fc.eof":
			return fc.EOF(n).String()
		}
	}
	return s
}
