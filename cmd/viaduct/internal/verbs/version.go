package verbs

import (
	"runtime"
	"slices"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/transport"
)

// A protocol is a protocol this program implements, with the specification.
type protocol struct {
	Name     string `json:"name"`
	Revision string `json:"revision"`
	// needs is the transport that uses the protocol. If empty, the protocol is always included.
	needs string
}

var protocols = []protocol{
	{"VI Architecture", "1.0 (1997)", "vitcp"},
	{"VI/TCP", "draft-dicecco-vitcp-00 (2000)", "vitcp"},
	{"MPA", "RFC 5044 and RFC 6581, revisions 1 and 2", "iwarp"},
	{"DDP", "RFC 5041, version 1", "iwarp"},
	{"RDMAP", "RFC 5040 and RFC 7306, version 1", "iwarp"},
	{"SDP", "draft-pinkerton-iwarp-sdp-01 (2004), version 1.1", "sdp"},
	{"SDP Port Mapper", "draft-pinkerton-iwarp-sdp-01 (2004), version 0", ""},
	{"FC-VI", "ISO/IEC 14165-331, as far as public, with assigned code points", "fcvi"},
	{"FCIP", "RFC 3821 and RFC 3643", "fcvi"},
	{"HTTP", "1.1, with digests of RFC 9530", ""},
}

func versionCommand(e *shell.Env) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "version, commit, Go version, protocols and revisions spoken",
		RunE: func(*cobra.Command, []string) error {
			v := struct {
				Version   string     `json:"version"`
				Commit    string     `json:"commit"`
				Modified  bool       `json:"modified"`
				Go        string     `json:"go"`
				Platform  string     `json:"platform"`
				Protocols []protocol `json:"protocols"`
			}{Version: shell.Version(), Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
			v.Commit, v.Modified = shell.Commit()
			for _, p := range protocols {
				if p.needs == "" || slices.Contains(transport.Names(), p.needs) {
					v.Protocols = append(v.Protocols, p)
				}
			}
			if e.JSON {
				return e.PrintJSON(v)
			}
			commit := v.Commit
			if v.Modified {
				commit += ", with changes"
			}
			e.Printf("viaduct %s (commit %s, %s, %s)\n", v.Version, commit, v.Go, v.Platform)
			rows := [][]string{{"protocol", "revision"}}
			for _, p := range v.Protocols {
				rows = append(rows, []string{p.Name, p.Revision})
			}
			e.Printf("%s", shell.Table(rows))
			return nil
		},
	}
}
