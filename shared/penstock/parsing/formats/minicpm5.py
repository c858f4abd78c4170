"""Calls as MiniCPM5 writes them; a value with markup or line breaks is quoted:

<function name="get_weather"><param name="city">Paris</param></function>
<function name="run"><param name="code"><![CDATA[a < b]]></param></function>
"""

from penstock.parsing.format import CallFormat, CallHead, KeyedValues, MarkPair, Recognised

MINICPM5 = CallFormat(
    names=("minicpm5",),
    models="MiniCPM5",
    recognised=Recognised(all_of=('<function name="', '<param name="')),
    call=MarkPair('<function name="', "</function>"),
    bodies=("named",),
    head=CallHead(ends=('">',)),
    arguments=KeyedValues(
        key='<param name="',
        key_ends=(('">', "schema"),),
        value=MarkPair("", "</param>"),
        quoted=MarkPair("<![CDATA[", "]]>"),
    ),
)
