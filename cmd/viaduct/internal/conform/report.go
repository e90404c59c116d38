package conform

import (
	"encoding/xml"
	"fmt"
	"html/template"
	"io"
)

// A Report is the result of a run.
type Report struct {
	Peer    string   `json:"peer"`
	Results []Result `json:"results"`
}

// Count returns the number of cases with the verdict v.
func (r *Report) Count(v Verdict) (n int) {
	for _, x := range r.Results {
		if x.Verdict == v {
			n++
		}
	}
	return n
}

// Summary returns a line with the numbers of all verdicts.
func (r *Report) Summary() string {
	return fmt.Sprintf("%d passed, %d failed, %d not observable, %d skipped", r.Count(Pass),
		r.Count(Fail), r.Count(NotObservable), r.Count(Skip))
}

type junitCase struct {
	Name    string     `xml:"name,attr"`
	Class   string     `xml:"classname,attr"`
	Time    string     `xml:"time,attr"`
	Failure *junitNote `xml:"failure,omitempty"`
	Skipped *junitNote `xml:"skipped,omitempty"`
}

type junitNote struct {
	Message string `xml:"message,attr"`
	Type    string `xml:"type,attr,omitempty"`
}

type junitSuite struct {
	XMLName  xml.Name    `xml:"testsuite"`
	Name     string      `xml:"name,attr"`
	Tests    int         `xml:"tests,attr"`
	Failures int         `xml:"failures,attr"`
	Skipped  int         `xml:"skipped,attr"`
	Cases    []junitCase `xml:"testcase"`
}

// JUnit writes the report as JUnit XML for continuous integration systems. An unobservable case is
// reported as skipped.
func (r *Report) JUnit(w io.Writer) error {
	s := junitSuite{Name: "conform " + r.Peer, Tests: len(r.Results), Failures: r.Count(Fail),
		Skipped: r.Count(Skip) + r.Count(NotObservable)}
	for _, x := range r.Results {
		c := junitCase{Name: x.Name, Class: x.Proto + "." + string(x.Role), Time: fmt.Sprintf("%.3f", x.Seconds)}
		switch x.Verdict {
		case Fail:
			c.Failure = &junitNote{x.Row + ": " + x.Detail, x.Row}
		case Skip, NotObservable:
			c.Skipped = &junitNote{Message: string(x.Verdict) + ": " + x.Detail}
		}
		s.Cases = append(s.Cases, c)
	}
	if _, err := io.WriteString(w, xml.Header); err != nil {
		return err
	}
	e := xml.NewEncoder(w)
	e.Indent("", "  ")
	if err := e.Encode(s); err != nil {
		return err
	}
	_, err := io.WriteString(w, "\n")
	return err
}

var page = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1"><title>conform {{.Peer}}</title>
<style>
:root { color-scheme: light dark }
body { font: 15px/1.4 system-ui, sans-serif; margin: 1.5em; max-width: 75em }
h1 { font-size: 1.5em; overflow-wrap: anywhere }
th { white-space: nowrap }
table { border-collapse: collapse; width: 100% }
tr { border-bottom: 1px solid #8884 }
td, th { text-align: left; vertical-align: top; padding: .3em .6em; overflow-wrap: anywhere }
.name, .rows span { white-space: nowrap }
@media (max-width: 50em) { th { display: none } td { display: block; padding: .15em 0 } tr { display: block; padding: .5em 0 } .name { font-weight: bold; white-space: normal } }
.pass { color: #197a2e } .fail { color: #c01c28; font-weight: bold } .other { color: #777 }
@media (prefers-color-scheme: dark) { .pass { color: #6fd388 } .fail { color: #ff7b7b } .other { color: #999 } }
</style></head><body>
<h1>conform {{.Peer}}</h1><p>{{.Summary}}</p>
<table><tr><th>case</th><th>requirements</th><th>what must hold</th><th>result</th></tr>
{{range .Results}}<tr><td class="name">{{.Name}}</td><td class="rows">{{range .Rows}}<span>{{.}}</span> {{end}}</td><td>{{.Text}}</td>
<td class="{{if eq .Verdict "pass"}}pass{{else if eq .Verdict "fail"}}fail{{else}}other{{end}}">{{.Verdict}}{{if .Row}} {{.Row}}{{end}}{{if .Detail}}: {{.Detail}}{{end}}</td></tr>
{{end}}</table></body></html>
`))

// HTML writes the report as a web page.
func (r *Report) HTML(w io.Writer) error { return page.Execute(w, r) }
