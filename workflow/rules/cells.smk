# One rule per kind of cell, all of one form; what differs between kinds, the workflow knows.
for kind in FLOW.kinds():

    rule:
        name:
            kind
        input:
            unpack(FLOW.inputs(kind)),
        output:
            FLOW.output_pattern(kind),
        log:
            FLOW.log_pattern(kind),
        wildcard_constraints:
            study=FLOW.studies_pattern(kind),
        priority: FLOW.priority(kind)
        conda:
            "../../environment.yml"
        threads: FLOW.threads_of(kind)
        resources:
            mem_mb=FLOW.memory(kind),
            gpu=FLOW.gpus(kind),
        params:
            spec=FLOW.specs(kind),
            code=FLOW.codes(kind),
            named=FLOW.named_inputs(kind),
        shell:
            "kvatlas job cell --spec {params.spec:q} --code {params.code} --threads {threads} --input {params.named:q} --output {output} > {log} 2>&1"
