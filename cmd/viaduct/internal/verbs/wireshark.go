package verbs

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"viaduct/cmd/viaduct/internal/shell"
	"viaduct/cmd/viaduct/internal/wireshark"
)

func wiresharkCommand(e *shell.Env) *cobra.Command {
	var install, show bool
	var dir string
	c := &cobra.Command{
		Use:   "wireshark --install [--dir DIR] | --print",
		Short: "dissectors for Wireshark: VI/TCP, SDP, Port Mapper, FC-VI",
		Long: `Install Lua dissectors for VI/TCP, SDP over iWARP, its Port Mapper and FC-VI into
the directory where Wireshark and tshark look for this user's plugins (--install),
or print them (--print). Fields have the same names as in decode, except that sdp
is iwarp_sdp and portmap is sdp_portmap, because Wireshark uses these names for
other protocols; docs/wireshark.md has more.`,
		RunE: func(*cobra.Command, []string) error {
			switch {
			case install == show:
				return shell.Usagef("one of --install and --print is wanted")
			case show && dir != "":
				return shell.Usagef("--dir is for --install")
			case show && e.JSON:
				return shell.Usagef("--print goes with no --json: it prints the dissectors as they are")
			case show:
				var all strings.Builder
				for _, name := range wireshark.Names() {
					b, err := wireshark.File(name)
					if err != nil {
						return err
					}
					fmt.Fprintf(&all, "-- %s\n%s\n", name, b)
				}
				e.Printf("%s", all.String())
				return nil
			}
			if dir == "" {
				var err error
				if dir, err = wireshark.Folder(); err != nil {
					return shell.Hint(err, "name the folder by --dir")
				}
			}
			paths, err := wireshark.Install(dir)
			if err != nil {
				return err
			}
			if e.JSON {
				return e.PrintJSON(struct {
					Files []string `json:"files"`
				}{paths})
			}
			for _, p := range paths {
				e.Printf("%s\n", p)
			}
			return nil
		},
	}
	c.Flags().BoolVar(&install, "install", false, "write the dissectors into the directory of plugins")
	c.Flags().StringVar(&dir, "dir", "", "with --install: write into this `DIR` instead")
	c.Flags().BoolVar(&show, "print", false, "print the dissectors")
	return c
}
