package figures

import (
	"bytes"
	"fmt"
	"strings"
)

// A Table is a table of a document. Its head and rows have cells a bar separates, as in the
// document.
type Table struct {
	About []string `json:"about"` // lines above it
	Head  string   `json:"head"`
	Rows  []string `json:"rows"`
	Below []string `json:"below"` // lines below it
}

// Stale is the verdict of a row that was measured before a change that matters to it. It is
// written into the results by hand.
const Stale = "stale"

// Row joins cells. A cell is on one line, and has no bar.
func Row(cells ...string) string {
	one := make([]string, len(cells))
	for i, c := range cells {
		one[i] = strings.ReplaceAll(strings.Join(strings.Fields(c), " "), "|", "/")
	}
	return strings.Join(one, " | ")
}

// cells is the reverse of Row.
func cells(row string) []string { return strings.Split(row, " | ") }

// The marks around what is made. The rest of a page is written by hand.
const (
	expectedBegins = "<!-- table: made from internal/figures/results.json -->\n"
	peersBegins    = "<!-- table: made by bench/peers.sh -->\n"
	runBegins      = "<!-- table: made by bench/run.sh -->\n"
	tableEnds      = "<!-- end of table -->\n"
)

// Markdown is the table as a document has it.
func (t Table) Markdown() string {
	var b strings.Builder
	line := func(row string) { b.WriteString(strings.TrimRight("| "+row, " ") + " |\n") }
	for _, l := range t.About {
		b.WriteString(l + "\n")
	}
	if len(t.About) > 0 {
		b.WriteString("\n")
	}
	line(t.Head)
	b.WriteString(strings.Repeat("|---", len(cells(t.Head))) + "|\n")
	for _, r := range t.Rows {
		line(r)
	}
	if len(t.Below) > 0 {
		b.WriteString("\n")
	}
	for _, l := range t.Below {
		b.WriteString(l + "\n")
	}
	return b.String()
}

// replace puts a text between its marks.
func replace(page []byte, begins, text string) ([]byte, error) {
	head, rest, ok := bytes.Cut(page, []byte(begins))
	_, tail, ok2 := bytes.Cut(rest, []byte(tableEnds))
	if !ok || !ok2 {
		return nil, fmt.Errorf("the page has no line %q with a line %q after it",
			strings.TrimSpace(begins), strings.TrimSpace(tableEnds))
	}
	return bytes.Join([][]byte{head, []byte(begins), []byte("\n" + text + "\n"), []byte(tableEnds), tail}, nil), nil
}
