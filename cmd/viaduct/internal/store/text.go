package store

import (
	"encoding/json"
	"unicode/utf8"
)

// A Text is a string of any bytes, such as the name of a file, kept unchanged by JSON. UTF-8 is
// encoded as a JSON string, anything else as an object, {"base64": "..."}. As a JSON string, bytes
// that are not UTF-8 would all become the same character, so that two names could become equal.
type Text string

// A textBytes is a Text other than UTF-8.
type textBytes struct {
	Base64 []byte `json:"base64"`
}

// MarshalJSON implements json.Marshaler.
func (t Text) MarshalJSON() ([]byte, error) {
	if utf8.ValidString(string(t)) {
		return json.Marshal(string(t))
	}
	return json.Marshal(textBytes{[]byte(t)})
}

// UnmarshalJSON implements json.Unmarshaler.
func (t *Text) UnmarshalJSON(b []byte) error {
	if len(b) > 0 && b[0] == '{' {
		var v textBytes
		err := json.Unmarshal(b, &v)
		*t = Text(v.Base64)
		return err
	}
	return json.Unmarshal(b, (*string)(t))
}
