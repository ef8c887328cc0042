# A server in a container that does what its test says. It needs nothing but the program perl.
#
#   port 80    TCP: `id` gives the instance's id, and each line after that its echo. `GET` gives a page.
#   port 53    UDP: answers each question of DNS.
#   port 8080  TCP: the agent. What it says stands in /says/ID.agent.
#
# /says/ID has a word: `refuse` (nobody listens on port 80), `error` (status 503, SERVFAIL), `endless` (a line without an
# end), `flood` (datagrams that answer nothing). On SIGTERM it writes /says/ID.ended and ends.
my ($TCP, $UDP) = (1, 2);
my $id = $ENV{INCO_INSTANCE_ID};
$| = 1;
$SIG{TERM} = sub { open(my $f, '>', "/out/$id.ended"); close $f; exit 0 };
$SIG{PIPE} = 'IGNORE';

sub said {
    open(my $f, '<', "/says/$_[0]") or return '';
    my $line = <$f>;
    chomp($line = $line // '');
    return $line;
}

sub address { return pack('S n a4 x8', 2, $_[0], "\0\0\0\0") }

sub listener {
    socket(my $s, 2, $TCP, 0) or die "socket: $!";
    setsockopt($s, 1, 2, pack('l', 1));
    bind($s, address($_[0])) or die "bind: $!";
    listen($s, 128) or die "listen: $!";
    return $s;
}

my ($web, $agent) = (listener(80), listener(8080));
socket(my $dns, 2, $UDP, 0) or die "socket: $!";
bind($dns, address(53)) or die "bind: $!";
my %client;    # by descriptor: the socket, and what it has sent

sub gone { my $n = shift; close $client{$n}[0]; delete $client{$n} }

sub answer {
    my ($n, $line, $word) = @_;
    my $s = $client{$n}[0];
    if ($line =~ /^GET /) {
        my $status = $word eq 'error' ? '503 Busy' : '200 OK';
        my $text = $word eq 'endless' ? 'x' x 100_000 : "HTTP/1.1 $status\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
        syswrite($s, $text);
        return gone($n);
    }
    syswrite($s, $line eq 'id' ? "$id\n" : "$line\n");
}

while (1) {
    my $word = said($id);
    if ($word eq 'refuse') {
        close $web if $web;
        undef $web;
    } elsif (!$web) {
        $web = listener(80);
    }
    my $in = '';
    vec($in, fileno($_), 1) = 1 for grep { $_ } $web, $agent, $dns, map { $_->[0] } values %client;
    select(my $ready = $in, undef, undef, 0.02) > 0 or next;
    if ($web && vec($ready, fileno($web), 1)) {
        my $s;
        $client{ fileno($s) } = [$s, ''] if accept($s, $web);
    }
    if (vec($ready, fileno($agent), 1)) {
        my ($s, $line) = (undef, said("$id.agent"));
        accept($s, $agent) or next;
        syswrite($s, "$line\n") if $line ne '';
        close $s;
    }
    if (vec($ready, fileno($dns), 1)) {
        my $question;
        my $from = recv($dns, $question, 4096, 0);
        defined $from or next;
        my $head = substr($question, 0, 2) . pack('C2', 0x81, $word eq 'error' ? 0x82 : 0x83);
        my $text = $head . substr($question, 4);
        if ($word eq 'flood') {
            send($dns, pack('n', $_) . substr($text, 2), 0, $from) for 1 .. 5000;
        } else {
            send($dns, $text, 0, $from);
        }
    }
    for my $n (grep { vec($ready, $_, 1) } keys %client) {
        my $length = sysread($client{$n}[0], my $bytes, 4096);
        if (!$length) { gone($n); next }
        $client{$n}[1] .= $bytes;
        while ($client{$n} && $client{$n}[1] =~ s/^([^\r\n]*)\r?\n//) { answer($n, $1, $word) if $1 ne '' }
    }
}
