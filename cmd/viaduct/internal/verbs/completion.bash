# shellcheck shell=bash
# Completion of viaduct's command lines. The program itself says what fits; this
# gives it the words of the line as the shell will see them, since readline would
# break addresses at : and =.
_viaduct() {
	local line=${COMP_LINE:0:COMP_POINT} words=() word="" quote="" begun="" c i
	for ((i = 0; i < ${#line}; i++)); do
		c=${line:i:1}
		if [[ $quote && $c == "$quote" ]]; then
			quote=""
		elif [[ $quote == "'" ]]; then
			word+=$c
		elif [[ $c == \\ ]]; then
			((i++))
			word+=${line:i:1} begun=1
		elif [[ $quote ]]; then
			word+=$c
		elif [[ $c == [\"\'] ]]; then
			quote=$c begun=1
		elif [[ $c == [[:space:]] ]]; then
			[[ ! $begun ]] || words+=("$word")
			word="" begun=""
		else
			word+=$c begun=1
		fi
	done

	local out directive=4
	mapfile -t out < <("${words[0]/#\~/$HOME}" __completeNoDesc "${words[@]:1}" "$word" 2>/dev/null)
	if ((${#out[@]})) && [[ ${out[-1]} == :* ]]; then
		directive=${out[-1]#:}
		unset 'out[-1]'
	fi
	if [[ ! $quote ]]; then # readline completes what follows the last of these
		local head="${word%"${word##*[:=]}"}"
		out=("${out[@]#"$head"}")
		out=("${out[@]//&/\\&}")
	fi
	COMPREPLY=("${out[@]}")
	((directive & 2)) && compopt -o nospace
	if ((directive & 16)); then
		compopt -o dirnames
	elif ((!(directive & 4) && !${#out[@]})); then
		compopt -o default
	fi
	return 0
}
complete -F _viaduct viaduct
