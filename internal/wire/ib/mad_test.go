package ib

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"net/netip"
	"reflect"
	"testing"
)

// cmVectors are messages with their wire bytes, according to the offsets of ibta_vol1_c12.h.
// Trailing zeros are left out.
var cmVectors = []struct {
	rows string
	m    CM
	hex  string
}{
	{"ROCE-CM-1, ROCE-CM-2, ROCE-CM-3: REQ", CM{Kind: CMReq, TID: 0x1122334455667788, Local: 0xa0b0c0d0, Req: CMRequest{
		ServiceID: IPServiceID(0x106, 0x1234), GUID: 0x0102030405060708, QPN: 0x111213,
		PSN: 0x212223, Responder: 4, Initiator: 5,
		Retries: 7, RNRRetries: 6, SRQ: true, Transport: 1, PKey: 0xffff, MTU: 5, ResponseTime: 20,
		LocalTime: 21, MaxRetries: 15, AckTimeout: 18,
		Source: netip.MustParseAddr("192.0.2.1"), Destination: netip.MustParseAddr("192.0.2.2"),
		HopLimit: 64, TrafficClass: 8},
		Private: []byte{0xee}},
		"01070203 00000000 1122334455667788 0010 0000 00000000" + // header
			"a0b0c0d0 00000000 0000000001061234 0102030405060708 00000000 00000000" + // numbers, service, GUID, Q_Key
			"111213 04 000000 05 000000 a2 212223 af ffff 56 f8" + // QPN to SRQ
			"ffff ffff 00000000000000000000ffffc0000201 00000000000000000000ffffc0000202 00000003 08 40 00 90" + // path
			"0000 0000 00000000000000000000000000000000 00000000000000000000000000000000 00000000 00 00 00 00" + // no other path
			"ee"},
	{"ROCE-CM-3: MRA", CM{Kind: CMMRA, Local: 1, Remote: 2, About: AboutRep, Service: 24},
		"01070203 00000000 0000000000000000 0011 0000 00000000 00000001 00000002 40 c0"},
	{"ROCE-CM-3: REJ", CM{Kind: CMRej, Local: 1, Remote: 2, About: AboutRep, Reason: RejectConsumer},
		"01070203 00000000 0000000000000000 0012 0000 00000000 00000001 00000002 40 00 001c"},
	{"ROCE-CM-3: REP", CM{Kind: CMRep, Local: 1, Remote: 2, Rep: CMReply{QPN: 0x111213, PSN: 0x212223, Responder: 3, Initiator: 4, RNRRetries: 7, SRQ: true,
		GUID: 0x0102030405060708}, Private: []byte{0xee}},
		"01070203 00000000 0000000000000000 0013 0000 00000000 00000001 00000002 00000000 11121300 00000000 21222300 03 04 00 f0 0102030405060708 ee"},
	{"ROCE-CM-3: RTU", CM{Kind: CMRTU, Local: 1, Remote: 2, Private: []byte{0xee}},
		"01070203 00000000 0000000000000000 0014 0000 00000000 00000001 00000002 ee"},
	{"ROCE-CM-3: DREQ", CM{Kind: CMDReq, Local: 1, Remote: 2, QPN: 0x111213, Private: []byte{0xee}},
		"01070203 00000000 0000000000000000 0015 0000 00000000 00000001 00000002 11121300 ee"},
	{"ROCE-CM-3: DREP", CM{Kind: CMDRep, Local: 1, Remote: 2},
		"01070203 00000000 0000000000000000 0016 0000 00000000 00000001 00000002"},
	{"ROCE-CM-3: SIDR_REQ", CM{Kind: CMSIDRReq, Local: 1, SIDR: CMService{PKey: 0xffff, ServiceID: IPServiceID(0x111, 7)}, Private: []byte{0xee}},
		"01070203 00000000 0000000000000000 0017 0000 00000000 00000001 ffff 0000 0000000001110007 ee"},
	{"ROCE-CM-3: SIDR_REP", CM{Kind: CMSIDRRep, Local: 1, SIDR: CMService{Status: 2, QPN: 0x111213, ServiceID: 9, QKey: 0x01234567}},
		"01070203 00000000 0000000000000000 0018 0000 00000000 00000001 02 00 0000 11121300 0000000000000009 01234567"},
}

func unspace(t testing.TB, s string) []byte {
	b, err := hex.DecodeString(string(bytes.ReplaceAll([]byte(s), []byte(" "), nil)))
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// [ROCE-CM-3] [ROCE-CM-4]
func TestROCE_CM(t *testing.T) {
	for _, v := range cmVectors {
		t.Run(v.rows, func(t *testing.T) {
			want := append(unspace(t, v.hex), make([]byte, MADLen)...)[:MADLen]
			b := v.m.Append(nil)
			if !bytes.Equal(b, want) {
				t.Errorf("%x, want\n%x", b, want)
			}
			got, err := ParseCM(b)
			if err != nil {
				t.Fatal(err)
			}
			if n := v.m.Kind.PrivateLen(); len(got.Private) != n {
				t.Errorf("%d bytes of private data, want %d", len(got.Private), n)
			}
			got.Private = bytes.TrimRight(got.Private, "\x00")
			if len(got.Private) == 0 {
				got.Private = nil
			}
			if !reflect.DeepEqual(got, v.m) {
				t.Errorf("%+v, want %+v", got, v.m)
			}
			for n := range MADLen {
				if _, err := ParseCM(b[:n]); err != io.ErrUnexpectedEOF {
					t.Fatalf("%d bytes: %v", n, err)
				}
			}
			for i := range 4 {
				bad := bytes.Clone(b)
				bad[i]++
				if _, err := ParseCM(bad); !errors.Is(err, ErrMAD) {
					t.Errorf("byte %d of the header: %v", i, err)
				}
			}
		})
	}
	t.Run("ROCE-CM-5", func(t *testing.T) {
		for h, want := range map[IPHeader]string{
			{netip.MustParseAddrPort("192.0.2.1:513"), netip.MustParseAddr("192.0.2.2")}: "00 40 0201 000000000000000000000000c0000201 000000000000000000000000c0000202",
			{netip.MustParseAddrPort("[fd00::1]:513"), netip.MustParseAddr("fd00::2")}:   "00 60 0201 fd000000000000000000000000000001 fd000000000000000000000000000002",
		} {
			b := h.Append(nil)
			if !bytes.Equal(b, unspace(t, want)) {
				t.Errorf("%v: %x", h, b)
			}
			if got, ok := ParseIPHeader(b); !ok || got != h {
				t.Errorf("%+v %v, want %+v", got, ok, h)
			}
			if _, ok := ParseIPHeader(b[:IPHeaderLen-1]); ok {
				t.Error("a short header")
			}
		}
	})
}

// FuzzParseCM checks that appending and parsing a parsed message again gives the same message.
func FuzzParseCM(f *testing.F) {
	for _, v := range cmVectors {
		f.Add(v.m.Append(nil))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := ParseCM(b)
		if err != nil {
			return
		}
		again, err := ParseCM(m.Append(nil))
		if err != nil || !reflect.DeepEqual(again, m) {
			t.Fatalf("%+v, then %+v, %v", m, again, err)
		}
		ParseIPHeader(m.Private)
	})
}
