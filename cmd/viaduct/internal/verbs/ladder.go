package verbs

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/decode"
	"viaduct/cmd/viaduct/internal/exchange"
	"viaduct/cmd/viaduct/internal/ladder"
	"viaduct/cmd/viaduct/internal/shell"
)

func ladderCommand(e *shell.Env) *cobra.Command {
	var as []string
	var filter, demo, out, title string
	var list, toScale bool
	var opt decode.Options
	var most int
	c := &cobra.Command{
		Use:   "ladder FILE|- | --demo NAME",
		Short: "draw the messages of a capture or of an exchange as a ladder",
		Long: `Draw the messages between two hosts as a sequence diagram, with an arrow per
message, and the states and credits of both ends at the sides. FILE is a capture
as for decode. The diagram has all connections between the two hosts of the first
connection. With --demo, the engines perform an exchange from the specifications
over a line with a delay of 8 ms; --list prints the names. The file of -o ends in
.svg, .html (with both time scales, zoom, and the fields of a message under the
pointer), .txt, or with --demo .pcapng. Without -o, or with -o -, the diagram is
text on standard output.`,
		Args: usageArgs(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) (err error) {
			switch {
			case list && (len(args) > 0 || demo != ""):
				return shell.Usagef("--list stands alone")
			case list:
				return listExchanges(e)
			case (len(args) == 0) == (demo == ""):
				return shell.Usagef("one of FILE and --demo is wanted")
			case demo != "" && (len(as) > 0 || opt.Stream > 0):
				return shell.Usagef("--as and --stream are for captures, not for --demo")
			case most < 1:
				return shell.Usagef("--max %d: at least 1 is wanted", most)
			}
			form := strings.ToLower(filepath.Ext(out))
			switch {
			case (out == "" || out == "-") && e.JSON:
				return shell.Usagef("--json wants a file, by -o; decode --json prints the messages")
			case out == "" || out == "-":
				form = ".txt"
			case form == ".pcapng" && demo == "":
				return shell.Usagef("-o %s: a capture is written for --demo only", out)
			case form != ".svg" && form != ".html" && form != ".txt" && form != ".pcapng":
				return shell.Usagef("-o %s: the name must end in .svg, .html, .txt or .pcapng", out)
			}
			if opt.As, err = parseAs(as); err != nil {
				return shell.Usage(err)
			}
			f, err := decode.ParseFilter(filter)
			if err != nil {
				return shell.Usage(fmt.Errorf("--filter: %w", err))
			}
			lo := ladder.Options{Max: most}
			var in io.Reader
			if demo != "" {
				x, ok := exchange.Find(demo)
				if !ok {
					return shell.Usagef("there is no --demo %q; --list prints those there are", demo)
				}
				r, err := x.Run(cmd.Context())
				if err != nil {
					return err
				}
				if form == ".pcapng" {
					return writePicture(e, out, r.Capture)
				}
				if filter == "" {
					if f, err = decode.ParseFilter(x.Filter); err != nil {
						return err
					}
				}
				lo.Title, lo.Ends, lo.Delay, lo.Lost = x.Title, x.Ends, r.Delay, func(p int) bool { return r.Lost[p] }
				in = bytes.NewReader(r.Capture)
			} else {
				lo.Title = args[0]
				in = e.Stdin
				if args[0] != "-" {
					f, err := os.Open(args[0])
					if err != nil {
						return err
					}
					defer f.Close()
					in = f
				}
				in = &stoppable{cmd.Context(), in}
			}
			if title != "" {
				lo.Title = title
			}
			b := ladder.New(lo)
			if err := decode.New(opt, func(m *decode.Message) {
				if f.Wants(m) {
					b.Add(m)
				}
			}).Read(in); err != nil {
				return notCapture(err)
			}
			d := b.Diagram()
			if len(d.Messages) == 0 {
				return shell.Hint(errors.New("there is no message to draw"),
					"look at what viaduct decode prints; --as names the protocol of a port")
			}
			return writeLadder(e, d, out, form, toScale)
		},
	}
	fl := c.Flags()
	fl.StringVar(&demo, "demo", "", "carry out and draw the exchange `NAME`")
	fl.BoolVar(&list, "list", false, "print the names of the exchanges")
	fl.StringVarP(&out, "output", "o", "", "the `FILE` to write: .svg, .html, .txt or .pcapng")
	fl.BoolVar(&toScale, "to-scale", false, "svg: height is proportional to time")
	fl.StringVar(&title, "title", "", "the `TEXT` above the picture")
	fl.StringVar(&filter, "filter", "", "draw only messages for which all of these `TERMS` hold, as for decode")
	fl.StringArrayVar(&as, "as", nil, "decode connections of a port as a protocol, `PORT=PROTO`; may be repeated")
	fl.IntVar(&opt.Stream, "stream", 0, "draw only the connection with this `NUMBER`")
	fl.IntVar(&most, "max", ladder.DefaultMax, "draw at most this `NUMBER` of messages")
	return c
}

func listExchanges(e *shell.Env) error {
	if e.JSON {
		type entry struct {
			Name   string `json:"name"`
			Title  string `json:"title"`
			Source string `json:"source"`
		}
		var all []entry
		for _, x := range exchange.All() {
			all = append(all, entry{x.Name, x.Title, x.Source})
		}
		return e.PrintJSON(struct {
			Exchanges []entry `json:"exchanges"`
		}{all})
	}
	var rows [][]string
	for _, x := range exchange.All() {
		rows = append(rows, []string{x.Name, x.Title, x.Source})
	}
	e.Printf("%s", shell.Table(append([][]string{{"name", "exchange", "of"}}, rows...)))
	return nil
}

func writeLadder(e *shell.Env, d *ladder.Diagram, out, form string, toScale bool) error {
	var b bytes.Buffer
	var err error
	switch form {
	case ".svg":
		s := ladder.ByEvent
		if toScale {
			s = ladder.ByTime
		}
		err = d.WriteSVG(&b, s)
	case ".html":
		err = d.WriteHTML(&b)
	default:
		err = d.WriteText(&b)
	}
	if err != nil {
		return err
	}
	if out == "" || out == "-" {
		e.Printf("%s", b.String())
		return nil
	}
	return writePicture(e, out, b.Bytes())
}

// writePicture writes a file. With --json, writePicture prints a document about the file.
func writePicture(e *shell.Env, file string, b []byte) error {
	if err := os.WriteFile(file, b, 0o644); err != nil || !e.JSON {
		return err
	}
	return e.PrintJSON(struct {
		File  string `json:"file"`
		Bytes int    `json:"bytes"`
	}{file, len(b)})
}
