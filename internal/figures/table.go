package figures

import (
	"bytes"
	"fmt"
	"strings"
)

// A Table is a table of a document. Bars separate the cells of the head and of each row, as in
// Markdown.
type Table struct {
	About []string `json:"about"` // lines above the table
	Head  string   `json:"head"`
	Rows  []string `json:"rows"`
	Below []string `json:"below"` // lines below the table
}

// Stale is the verdict of a row measured before a change that affects the figures. Stale is written
// into the results by hand.
const Stale = "stale"

// Row joins cells. It puts each cell on one line, and replaces bars in a cell by slashes.
func Row(cells ...string) string {
	one := make([]string, len(cells))
	for i, c := range cells {
		one[i] = strings.ReplaceAll(strings.Join(strings.Fields(c), " "), "|", "/")
	}
	return strings.Join(one, " | ")
}

// cells returns the cells of a row, the reverse of Row.
func cells(row string) []string { return strings.Split(row, " | ") }

// The marks around generated tables. All other text of a page is written by hand.
const (
	expectedBegins = "<!-- table: made from internal/figures/results.json -->\n"
	peersBegins    = "<!-- table: made by bench/peers.sh -->\n"
	runBegins      = "<!-- table: made by bench/run.sh -->\n"
	tableEnds      = "<!-- end of table -->\n"
)

// Markdown returns the table as Markdown, with the lines above and below it.
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

// replace puts text between the mark begins and the next tableEnds. It fails if a mark is missing.
func replace(page []byte, begins, text string) ([]byte, error) {
	head, rest, ok := bytes.Cut(page, []byte(begins))
	_, tail, ok2 := bytes.Cut(rest, []byte(tableEnds))
	if !ok || !ok2 {
		return nil, fmt.Errorf("the page has no line %q with a line %q after it",
			strings.TrimSpace(begins), strings.TrimSpace(tableEnds))
	}
	return bytes.Join([][]byte{head, []byte(begins), []byte("\n" + text + "\n"), []byte(tableEnds), tail}, nil), nil
}
