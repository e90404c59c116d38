package decode

import (
	"encoding/json"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"viaduct/internal/wire/ib"
)

// A Message is one message of a protocol, or a remark about the capture. A Message is valid only
// during the call of the decoder's out function.
type Message struct {
	Frame  int // number of the packet that completed the message, from 1
	Time   time.Time
	Conn   int // number of the connection, from 1; 0 for datagrams and for the capture itself
	Back   bool
	Src    netip.AddrPort
	Dst    netip.AddrPort
	Proto  string // layer that names the message
	Name   string // as its specification spells it
	Fields []Field
	Wrong  []Wrong
	Note   string
}

// A Field is one field of a message. The key begins with the name of the layer, as in "mpa.crc".
type Field struct {
	Key  string
	Text string // if Kind is text
	N    uint64
	Kind kind
}

type kind uint8

const (
	text kind = iota
	number
	hex // shown and written as 0x...
	truth
)

// A Wrong is a rule violated by a message.
type Wrong struct {
	ID   string // a row of the requirement matrix, or a decision
	Text string
}

func (m *Message) num(key string, n uint64) {
	m.Fields = append(m.Fields, Field{Key: key, N: n, Kind: number})
}
func (m *Message) hex(key string, n uint64) {
	m.Fields = append(m.Fields, Field{Key: key, N: n, Kind: hex})
}
func (m *Message) text(key, s string)    { m.Fields = append(m.Fields, Field{Key: key, Text: s}) }
func (m *Message) wrong(id, text string) { m.Wrong = append(m.Wrong, Wrong{id, text}) }
func (m *Message) truth(key string, is bool) {
	f := Field{Key: key, Kind: truth}
	if is {
		f.N = 1
	}
	m.Fields = append(m.Fields, f)
}

// Get returns the value of a field in printed form, and whether the field exists.
func (m *Message) Get(key string) (string, bool) {
	for i := range m.Fields {
		if m.Fields[i].Key == key {
			return m.Fields[i].String(), true
		}
	}
	return "", false
}

// String returns the value in printed form.
func (f *Field) String() string {
	switch f.Kind {
	case number:
		return strconv.FormatUint(f.N, 10)
	case hex:
		return "0x" + strconv.FormatUint(f.N, 16)
	case truth:
		return strconv.FormatBool(f.N == 1)
	}
	return f.Text
}

// AppendJSON appends m as one JSON object without a line end.
func (m *Message) AppendJSON(b []byte) []byte {
	b = append(b, `{"frame":`...)
	b = strconv.AppendInt(b, int64(m.Frame), 10)
	b = append(b, `,"time":"`...)
	b = m.Time.UTC().AppendFormat(b, time.RFC3339Nano)
	b = append(b, `","conn":`...)
	b = strconv.AppendInt(b, int64(m.Conn), 10)
	b = append(b, `,"dir":"`...)
	b = append(b, m.dir()...)
	b = append(b, `"`...)
	if m.Src.IsValid() {
		b = append(b, `,"src":"`...)
		b = m.Src.AppendTo(b)
		b = append(b, `","dst":"`...)
		b = m.Dst.AppendTo(b)
		b = append(b, `"`...)
	}
	b = append(b, `,"proto":`...)
	b = appendString(b, m.Proto)
	b = append(b, `,"name":`...)
	b = appendString(b, m.Name)
	b = append(b, `,"fields":{`...)
	for i := range m.Fields {
		f := &m.Fields[i]
		if i > 0 {
			b = append(b, ',')
		}
		b = appendString(b, f.Key)
		b = append(b, ':')
		switch f.Kind {
		case number:
			b = strconv.AppendUint(b, f.N, 10)
		case hex:
			b = append(b, `"0x`...)
			b = strconv.AppendUint(b, f.N, 16)
			b = append(b, '"')
		case truth:
			b = strconv.AppendBool(b, f.N == 1)
		default:
			b = appendString(b, f.Text)
		}
	}
	b = append(b, '}')
	if m.Note != "" {
		b = append(b, `,"note":`...)
		b = appendString(b, m.Note)
	}
	b = append(b, `,"wrong":[`...)
	for i, w := range m.Wrong {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, `{"id":`...)
		b = appendString(b, w.ID)
		b = append(b, `,"text":`...)
		b = appendString(b, w.Text)
		b = append(b, '}')
	}
	return append(b, "]}"...)
}

// appendString appends s as a quoted JSON string.
func appendString(b []byte, s string) []byte {
	for i := range len(s) {
		if c := s[i]; c < 0x20 || c >= 0x7f || c == '"' || c == '\\' {
			q, _ := json.Marshal(s) // a string can always be marshalled
			return append(b, q...)
		}
	}
	b = append(b, '"')
	b = append(b, s...)
	return append(b, '"')
}

// dir returns the direction: ">" from the opener of the connection, or from the side seen first,
// otherwise "<".
func (m *Message) dir() string {
	if m.Back {
		return "<"
	}
	return ">"
}

// quiet holds the fields omitted from a line, because the name of the message implies the value, or
// because the value is the usual value.
var quiet = map[string]bool{
	"mpa.ulpdu_length": true, "ddp.tagged": true, "ddp.last": true, "rdmap.opcode": true, "sdp.mid": true,
	"fcip.length": true, "vitcp.type": true, "portmap.type": true, "fcvi.opcode": true,
	"bth.opcode": true, "bth.pad": true, "bth.version": true, "aeth.syndrome": true,
}

// leftOut reports whether lines leave out a field.
func (m *Message) leftOut(f *Field) bool {
	switch {
	case quiet[f.Key]:
		return true
	case f.Key == "mpa.crc":
		return f.Text != "bad"
	case f.Key == "roce.icrc":
		return f.Text == "good"
	case f.Key == "rdmap.segments":
		return f.N == 1
	case f.Key == "bth.pkey":
		return f.N == ib.DefaultPKey
	case strings.HasPrefix(f.Key, "bth."):
		return m.Proto == "cm" || f.Kind == truth && f.N == 0
	case m.Proto == "cm":
		return strings.HasPrefix(f.Key, "deth.") || f.Key == "roce.payload"
	}
	return false
}

// AppendLine appends m as one line for people, without a line end.
func (m *Message) AppendLine(b []byte) []byte {
	b = m.Time.UTC().AppendFormat(b, "15:04:05.000000")
	if m.Conn > 0 {
		b = append(b, " #"...)
		b = strconv.AppendInt(b, int64(m.Conn), 10)
	}
	if m.Src.IsValid() {
		b = append(b, ' ')
		b = append(b, m.dir()...)
	}
	b = append(b, ' ')
	b = append(b, m.Proto...)
	b = append(b, ' ')
	b = append(b, m.Name...)
	for i := range m.Fields {
		f := &m.Fields[i]
		if m.leftOut(f) {
			continue
		}
		key := f.Key
		if _, last, ok := strings.Cut(key, "."); ok && strings.HasPrefix(key, m.Proto+".") {
			key = last
		}
		b = append(b, ' ')
		b = append(b, key...)
		b = append(b, '=')
		v := f.String()
		if f.Kind == text && strings.ContainsAny(v, " \"\\\n\t") {
			b = strconv.AppendQuote(b, v)
		} else {
			b = append(b, v...)
		}
	}
	if m.Note != "" {
		b = append(b, " ("...)
		b = append(b, m.Note...)
		b = append(b, ')')
	}
	for _, w := range m.Wrong {
		b = append(b, "  WRONG ["...)
		b = append(b, w.ID...)
		b = append(b, "] "...)
		b = append(b, w.Text...)
	}
	return b
}
